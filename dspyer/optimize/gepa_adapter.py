"""`ReusingAdapter`: DSPy's adapter for `gepa`, which makes no run twice, and asks for a repeated proposal anew."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import CachedEvaluation, EvaluationCache

from dspyer.dspy_module.lm_requests import STRIDE
from dspyer.optimize.components import Components
from dspyer.optimize.gepa_stats import GEPAStats
from dspyer.optimize.lm_counts import counting_lm_calls
from dspyer.optimize.recorded import recorded_lm
from dspyer.runtime.run import Run

Candidate = Mapping[str, str]
Batch = EvaluationBatch[Any, Any]


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run of a candidate on an example.

    Attributes:
        example: the example; while it is referred to, no other one has its id.
        output: the prediction.
        score: its score.
        objectives: its other scores, as `gepa` has them.
        trajectory: what DSPy captured of it.
    """

    example: Any
    output: Any
    score: float
    objectives: dict[str, float]
    trajectory: Mapping[str, Any]


class _Runs:
    """The known runs. A run is found by its example and the texts of the components that it may have called."""

    def __init__(self) -> None:
        self._of_example: dict[int, dict[tuple[str, ...], dict[tuple[str | None, ...], KnownRun]]] = {}

    def add(self, candidate: Candidate, used: tuple[str, ...], run: KnownRun) -> None:
        by_used = self._of_example.setdefault(id(run.example), {})
        by_used.setdefault(used, {})[tuple(candidate.get(name) for name in used)] = run

    def find(self, candidate: Candidate, example: Any) -> KnownRun | None:
        for used, by_texts in self._of_example.get(id(example), {}).items():
            found = by_texts.get(tuple(candidate.get(name) for name in used))
            if found is not None:
                return found
        return None


class ReusingAdapter:
    """DSPy's adapter with another one around it; `gepa` calls this one.

    Attributes:
        inner: DSPy's adapter.
        components: the components of the program.
        spared_since_made: how many runs were reused since the last one that was made.
    """

    def __init__(self, inner: Any, components: Components, stats: GEPAStats, *, reuse: bool) -> None:
        self.inner = inner
        self.components = components
        self.reuse = reuse
        self.spared_since_made = 0
        self._stats = stats
        self._runs = _Runs()
        self._proposer = copy.copy(inner)
        self._proposer.reflection_lm = recorded_lm(inner.reflection_lm or dspy.settings.lm)
        self._proposed: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # --- runs

    def evaluate(self, batch: list[Any], candidate: Candidate, capture_traces: bool = False) -> Batch:
        """The scores of a candidate on a batch."""
        if not self.reuse:
            with self._making(len(batch)):
                scored: Batch = self.inner.evaluate(batch, candidate, capture_traces=capture_traces)
                return scored

        def make(items: list[tuple[Candidate, list[Any]]]) -> list[Batch]:
            # Always with traces: the same run may be asked for with them later.
            return [self.inner.evaluate(missing, candidate, capture_traces=True) for candidate, missing in items]

        (found,) = self._evaluate([(candidate, batch)], make)
        return found if capture_traces else EvaluationBatch(**{**vars(found), "trajectories": None})

    def batch_evaluate(self, items: list[tuple[Candidate, list[Any]]]) -> list[Batch]:
        """The scores of several candidates, each on its batch."""
        if not self.reuse:
            with self._making(sum(len(batch) for _, batch in items)):
                found: list[Batch] = self.inner.batch_evaluate(items)
                return found
        return self._evaluate(items, self.inner.batch_evaluate)

    def _evaluate(self, items: Sequence[tuple[Candidate, list[Any]]], make: Any) -> list[Batch]:
        missing = [self._missing(candidate, batch) for candidate, batch in items]
        asked = [(candidate, lacks) for (candidate, _), lacks in zip(items, missing, strict=True) if lacks]
        made: list[Batch] = []
        if asked:
            with self._making(sum(len(lacks) for _, lacks in asked)):
                made = make(asked)
        fresh = iter(made)
        return [
            self._combined(candidate, batch, lacks, next(fresh) if lacks else None)
            for (candidate, batch), lacks in zip(items, missing, strict=True)
        ]

    def _missing(self, candidate: Candidate, batch: list[Any]) -> list[Any]:
        """The examples of a batch without a known run, each of them once."""
        lacks = {id(example): example for example in batch if self._runs.find(candidate, example) is None}
        return list(lacks.values())

    def _combined(self, candidate: Candidate, batch: list[Any], lacks: list[Any], made: Batch | None) -> Batch:
        """The runs of a batch, known ones and those that were just made; failed ones are only in `made`."""
        place_of = {id(example): place for place, example in enumerate(lacks)}
        failed: dict[int, Mapping[str, Any]] = {}
        if made is not None:
            failed = self._keep(candidate, lacks, made)
        outputs, scores, objectives, trajectories = [], [], [], []
        for index, example in enumerate(batch):
            run = self._runs.find(candidate, example)
            if run is None:
                assert made is not None
                place = place_of[id(example)]
                outputs.append(made.outputs[place])
                scores.append(made.scores[place])
                objectives.append(dict(made.objective_scores[place]) if made.objective_scores else {})
                trajectory = failed.get(place)
            else:
                outputs.append(run.output)
                scores.append(run.score)
                objectives.append(run.objectives)
                trajectory = run.trajectory
                if id(example) not in place_of:
                    self._spare(run)
            if trajectory is not None:
                trajectories.append({**trajectory, "example_ind": index})
        return EvaluationBatch(
            outputs=outputs,
            scores=scores,
            trajectories=trajectories,
            objective_scores=objectives if any(objectives) else None,
            num_metric_calls=len(lacks),
        )

    def _keep(self, candidate: Candidate, batch: list[Any], made: Batch) -> dict[int, Mapping[str, Any]]:
        """Keep the runs that succeeded; returns what was captured of the others, by their places."""
        failed = {}
        for trajectory in made.trajectories or ():
            place = trajectory["example_ind"]
            output = made.outputs[place]
            if output is None or isinstance(output, FailedPrediction):
                failed[place] = trajectory
                continue
            objectives = dict(made.objective_scores[place]) if made.objective_scores else {}
            run = KnownRun(batch[place], output, made.scores[place], objectives, trajectory)
            self._runs.add(candidate, self.components.used_in(output), run)
        return failed

    def known(self, candidate: Candidate, example: Any) -> KnownRun | None:
        """A known run, which is counted as spared."""
        found = self._runs.find(candidate, example)
        if found is not None:
            self._spare(found)
        return found

    @contextmanager
    def _making(self, runs: int) -> Iterator[None]:
        """A block that makes runs: counts them, and their LM calls."""
        self._stats.metric_calls += runs
        self.spared_since_made = 0
        with counting_lm_calls() as counts:
            try:
                yield
            finally:
                for node, made in counts.made.items():
                    if node:
                        self._stats.node(node).lm_calls += made
                    else:
                        self._stats.other_lm_calls += made
                for node, cached in counts.cached.items():
                    if node:
                        self._stats.node(node).lm_cached += cached

    def _spare(self, run: KnownRun) -> None:
        self._stats.metric_spared += 1
        self.spared_since_made += 1
        for node, calls in repeatable_calls(run.output).items():
            self._stats.node(node).lm_spared += calls

    # --- proposals

    def make_reflective_dataset(self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]) -> Any:
        """The records for the reflection LM; none for no component."""
        if not components_to_update:
            return {}
        return self.inner.make_reflective_dataset(candidate, eval_batch, components_to_update)

    def propose_new_texts(
        self, candidate: Candidate, reflective_dataset: Mapping[str, Any], components_to_update: list[str]
    ) -> dict[str, str]:
        """New texts for components.

        Those whose records the reflection LM has seen for this candidate are asked for one by one, with a rollout id of
        their own. A proposer of the user is asked for all components at once.
        """
        wanted = [name for name in components_to_update if name in reflective_dataset]
        if not wanted:
            return {}
        groups = [[name] for name in wanted] if self.inner._builtin_instruction_proposer else [wanted]
        texts: dict[str, str] = {}
        with counting_lm_calls() as counts:
            try:
                for group in groups:
                    texts.update(self._propose(candidate, reflective_dataset, group))
            finally:
                self._stats.reflection_calls += counts.made.total()
                self._stats.reflection_cached += counts.cached.total()
        for name, text in texts.items():
            if text != candidate.get(name):
                self._stats.node(self.components.node_of(name)).proposed += 1
        return texts

    def _propose(self, candidate: Candidate, dataset: Mapping[str, Any], components: list[str]) -> dict[str, str]:
        records = {name: dataset[name] for name in components}
        proposer = self._proposer
        if self.reuse:
            key = _digest(candidate, records)
            repeats, self._proposed[key] = self._proposed[key], self._proposed[key] + 1
            if repeats:
                self._stats.repeated += 1
                proposer = copy.copy(proposer)
                proposer.reflection_lm = _asking_anew(proposer.reflection_lm, repeats)
        found: dict[str, str] = proposer.propose_new_texts(dict(candidate), records, components)
        return found


class KnownRuns(EvaluationCache[Any, Any]):
    """The known runs as `gepa` asks for them before it evaluates a candidate on the validation set."""

    def __init__(self, adapter: ReusingAdapter, valset: Any) -> None:
        super().__init__()
        self._adapter = adapter
        self._valset = valset

    def get_batch(self, candidate: Candidate, example_ids: Sequence[Any]) -> tuple[dict[Any, Any], list[Any]]:
        """The known evaluations by id, and the ids of the others."""
        found, missing = {}, []
        for key, example in zip(example_ids, self._valset.fetch(list(example_ids)), strict=True):
            run = self._adapter.known(candidate, example)
            if run is None:
                missing.append(key)
            else:
                found[key] = CachedEvaluation(run.output, run.score, run.objectives or None)
        return found, missing

    def put_batch(self, *evaluated: Any) -> None:
        """Nothing: the adapter knows of every run that it makes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return EvaluationCache, ()  # with `log_dir`, `gepa` pickles its state; runs are of this process


def repeatable_calls(prediction: Any) -> Counter[str]:
    """The LM calls that another run like that of a prediction would make, by node: not those that DSPy has cached."""
    try:
        run = Run.of(prediction)
    except (LookupError, TypeError):
        return Counter()
    return Counter(step.node for step in run.trace_steps if not _is_cached(step.predictor))


def _is_cached(predictor: Any) -> bool:
    """Whether DSPy's own cache answers the requests of a predictor when they are made again."""
    lm = getattr(predictor, "lm", None) or dspy.settings.lm
    stores = dspy.cache.enable_memory_cache or dspy.cache.enable_disk_cache
    return bool(stores and getattr(lm, "cache", False))


def _asking_anew(lm: Any, repeats: int) -> Any:
    """The LM with requests that differ from its own, and from those of other repeats."""
    if not isinstance(lm, dspy.BaseLM):
        return lm
    rollout, temperature = lm.kwargs.get("rollout_id") or 0, lm.kwargs.get("temperature")
    return lm.copy(rollout_id=rollout + STRIDE * repeats, temperature=temperature or 1.0)


def _digest(candidate: Candidate, records: Mapping[str, Any]) -> str:
    return blake2b(repr((sorted(candidate.items()), records)).encode(), digest_size=16).hexdigest()
