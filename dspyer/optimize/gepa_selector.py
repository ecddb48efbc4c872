"""`CulpritSelector`: the component selector of `optimize.GEPA`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import dspy

from dspyer.errors import always_raised
from dspyer.lm.not_public import FailedPrediction
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.gepa_adapter import Candidate, ReusingAdapter
from dspyer.optimize.gepa_stats import GEPAStats
from dspyer.optimize.run_judge import author_of
from dspyer.runtime.run import Run, internals_of
from dspyer.values.freezing import same
from dspyer.values.frozen import thaw

logger = logging.getLogger("dspyer")


class Responsible(NamedTuple):
    """The nodes that are responsible for what is wrong in a run.

    Attributes:
        culprits: those that made a mistake.
        suspects: those of which one did, where no culprit is known.
    """

    culprits: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()


class CulpritSelector:
    """Selects the components of all culprits of a minibatch.

    A run without a known culprit adds one of its suspects, in turn, unless one of them is selected already. So each run
    that is wrong has a part in the proposal, and if only the goal has a metric, where all nodes are suspects, the
    selector goes round robin. It does so over all components that ran if nothing is known to be wrong.

    If all culprits are functions, tools or frozen nodes, nothing is selected: GEPA goes on with the next minibatch.
    """

    def __init__(self, adapter: ReusingAdapter, metric: FieldMetric, stats: GEPAStats) -> None:
        self._adapter = adapter
        self._metric = metric
        self._stats = stats
        self._signatures: Mapping[str, Any] = {}  # of the predictors of the candidate
        self._judged: dict[int, tuple[Any, Responsible]] = {}  # by prediction, which is kept

    def __call__(
        self, state: Any, trajectories: list[Any], subsample_scores: list[float], candidate_idx: int, candidate: Any
    ) -> list[str]:
        """The names of the components to edit."""
        del subsample_scores
        ran = self._reflectable(candidate, trajectories)
        found = [self._responsible(trajectory) for trajectory in trajectories]
        culprit_nodes = frozenset[str]().union(*(one.culprits for one in found))
        selected = self._components(culprit_nodes, ran)
        for one in found:
            suspects = self._components(one.suspects, ran)
            if not one.culprits and suspects and not set(suspects) & set(selected):
                selected += self._next(state, candidate_idx, suspects)
        if selected:
            return [name for name in candidate if name in selected]
        if culprit_nodes and not self._components(culprit_nodes, candidate):
            self._stats.untunable += 1
            return []
        return self._next(state, candidate_idx, ran or list(candidate))

    def _components(self, nodes: frozenset[str], among: Collection[str]) -> list[str]:
        return [name for name in among if not nodes.isdisjoint(self._adapter.components.nodes_of(name))]

    def _next(self, state: Any, candidate_idx: int, allowed: Collection[str]) -> list[str]:
        """The next component of a candidate in turn, as DSPy's round robin, of those that are allowed."""
        names: list[str] = state.list_of_named_predictors
        turns: list[int] = state.named_predictor_id_to_update_next_for_program_candidate
        order = [(turns[candidate_idx] + step) % len(names) for step in range(len(names))]
        place = next(place for place in order if names[place] in allowed)
        turns[candidate_idx] = (place + 1) % len(names)
        return [names[place]]

    def _reflectable(self, candidate: Candidate, trajectories: list[Any]) -> list[str]:
        """The components for which a run of the minibatch gives DSPy's adapter a record."""
        inner = self._adapter.inner
        signatures = {name: one.signature for name, one in inner.build_program(candidate).named_predictors()}
        self._signatures = signatures
        return [
            name
            for name in candidate
            if name not in signatures  # the code of a `dspy.Flex`: each run is a record
            or any(_has_record(one, signatures[name], inner.add_format_failure_as_feedback) for one in trajectories)
        ]

    def _responsible(self, trajectory: Mapping[str, Any]) -> Responsible:
        prediction = trajectory["prediction"]
        known = self._judged.get(id(prediction))
        if known is None:
            known = self._judged[id(prediction)] = (prediction, self._judge(trajectory))
        return known[1]

    def _judge(self, trajectory: Mapping[str, Any]) -> Responsible:
        """The responsible nodes of a run, which are counted; none of a run that failed: see `GEPAStats`."""
        prediction = trajectory["prediction"]
        try:
            run = Run.of(prediction)
        except (LookupError, TypeError):
            self._stats.without_run += isinstance(prediction, dspy.Prediction) and bool(prediction.keys())
            return Responsible()
        try:
            with self._adapter.counting():  # a field metric may ask an LM
                notes = self._metric._judgement(run, trajectory["example"]).culprits.notes
        except Exception as error:
            if always_raised(error):
                raise
            self._stats.unjudged += 1
            logger.warning("optimize.GEPA: a run has no known culprits, a field metric raised", exc_info=True)
            return Responsible()
        found = Responsible(
            frozenset(note.cause for note in notes if note.cause is not None),
            frozenset(node for note in notes if note.cause is None for node in note.suspects),
        )
        if not self._adapter.components.exact:
            found = self._in_module(found, run, trajectory)
        self._stats.judged += 1
        for node in found.culprits:
            self._stats.node(node).culprit += 1
        for node in found.suspects - found.culprits:
            self._stats.node(node).suspect += 1
        return found

    def _in_module(self, found: Responsible, run: Run, trajectory: Mapping[str, Any]) -> Responsible:
        """The same for a module that called the graph, and may have called others.

        If the graph was given what is not of the example, that may be the fault: all else that ran is a suspect, too.
        """
        internals, example = internals_of(run), trajectory["example"]
        own = {id(step.outputs): author_of(step, internals.graph) for step in run.trace_steps}
        by_node: dict[str, set[str]] = {}
        for name, signature in self._signatures.items():
            for predictor, _, outputs in trajectory["trace"]:
                if predictor.signature.equals(signature):
                    by_node.setdefault(own.get(id(outputs), ""), set()).update(self._adapter.components.nodes_of(name))
        culprits, suspects = (frozenset[str]().union(*(by_node.get(one, {one}) for one in nodes)) for nodes in found)
        given = {name: thaw(value) for name, value in internals.inputs.raw_items()}
        if "" not in by_node or all(name in example and same(value, example[name]) for name, value in given.items()):
            return Responsible(culprits, suspects)
        return Responsible(suspects=culprits | suspects | by_node[""] if any(found) else frozenset())


def _has_record(trajectory: Mapping[str, Any], signature: Any, with_failures: bool) -> bool:
    """Whether DSPy's adapter makes a record of a run for a predictor; the conditions are those of the adapter."""
    steps = [step for step in trajectory["trace"] if step[0].signature.equals(signature)]
    failed = [step for step in steps if isinstance(step[2], FailedPrediction)]
    if with_failures and failed:
        return True
    return len(steps) > len(failed) and not isinstance(trajectory["prediction"], FailedPrediction)
