"""`CulpritSelector`: the component selector of `optimize.GEPA`."""

from __future__ import annotations

from typing import Any

from dspyer.optimize.gepa_adapter import ReusingAdapter
from dspyer.optimize.gepa_stats import GEPAStats


class CulpritSelector:
    """Selects the components of the culprits of a minibatch; without culprits, one component after the other."""

    def __init__(self, adapter: ReusingAdapter, metric: Any, stats: GEPAStats) -> None:
        self._adapter = adapter
        self._metric = metric
        self._stats = stats

    def __call__(
        self, state: Any, trajectories: list[Any], subsample_scores: list[float], candidate_idx: int, candidate: Any
    ) -> list[str]:
        """The names of the components to edit."""
        del trajectories, subsample_scores, candidate
        return self._next(state, candidate_idx, list(state.list_of_named_predictors))

    def _next(self, state: Any, candidate_idx: int, allowed: list[str]) -> list[str]:
        """The next component of a candidate in turn, as DSPy's round robin, of those that are allowed."""
        names: list[str] = state.list_of_named_predictors
        turns: list[int] = state.named_predictor_id_to_update_next_for_program_candidate
        for step in range(len(names)):
            place = (turns[candidate_idx] + step) % len(names)
            if names[place] in allowed:
                turns[candidate_idx] = (place + 1) % len(names)
                return [names[place]]
        return []
