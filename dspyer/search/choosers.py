"""The policies of `best_of`, `beam` and `mcts`: pure functions from a tree to the trials of the next round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dspyer.search.trees import Tree, Trial
from dspyer.search.trial import ROOT, path_to

Choice = list[tuple[str, int]]
"""The trials of a round: the parent of each, and its place among the children of the parent."""


def _reached(trials: Sequence[Trial], threshold: float | None) -> bool:
    """Whether one of some trials reaches a threshold."""
    if threshold is None:
        return False
    return any(trial.reward is not None and trial.reward >= threshold for trial in trials)


@dataclass(frozen=True)
class BestOf:
    """`n` trials from the root, `per_round` at once."""

    n: int
    threshold: float | None
    per_round: int

    def __call__(self, tree: Tree) -> Choice:
        made = len(tree)
        if _reached(tree.last, self.threshold):
            return []
        return [(ROOT, place) for place in range(made, min(made + self.per_round, self.n))]


@dataclass(frozen=True)
class Beam:
    """The `width` best trials of a level are continued `branch` times each, down to `depth`.

    Trials that are done are set aside: they take no place in the beam.
    """

    width: int
    branch: int
    depth: int
    threshold: float | None
    stops_when_done: bool

    def __call__(self, tree: Tree) -> Choice:
        level = tree.last
        solved = [trial for trial in level if trial.done] if self.stops_when_done else level
        if not level:
            return [(ROOT, place) for place in range(self.branch)]
        if level[0].depth >= self.depth or _reached(solved, self.threshold):
            return []
        alive = [trial for trial in level if not trial.done and trial.reward is not None]
        best = sorted(alive, key=lambda trial: -(trial.reward or 0.0))[: self.width]  # stable: the first of equal ones
        return [(trial.name, place) for trial in best for place in range(self.branch)]


@dataclass(frozen=True)
class MonteCarlo:
    """Upper confidence bounds applied to trees (UCT; Kocsis and Szepesvári 2006), each trial being its own simulation.

    A parent with less than `branch` children gets the next one; otherwise the search descends to the child with the
    largest mean reward plus `c * sqrt(ln(visits of the parent) / visits)`, the first of equal ones. Within a round,
    each chosen trial counts as a visit without a reward (a virtual loss; Chaslot, Winands and van den Herik 2008).
    """

    branch: int
    depth: int
    max_trials: int
    c: float
    per_round: int
    threshold: float | None
    stops_when_done: bool

    def __call__(self, tree: Tree) -> Choice:
        last = [trial for trial in tree.last if trial.done or not self.stops_when_done]
        if _reached(last, self.threshold):
            return []
        chosen: Choice = []
        losses: dict[str, int] = {}  # the visits of this round, by trial
        while len(chosen) < min(self.per_round, self.max_trials - len(tree)):
            found = self._descend(tree, ROOT, len(tree), losses)
            if found is None:
                break
            chosen.append(found)
            parent, place = found
            for name in (ROOT, *path_to(f"{parent}.{place}")):
                losses[name] = losses.get(name, 0) + 1
        return chosen

    def _descend(self, tree: Tree, name: str, visits: int, losses: dict[str, int]) -> tuple[str, int] | None:
        """The next trial below one; None if all are tried, or chosen in this round."""
        children = tree.children(name)
        chosen = 0
        while f"{name}.{len(children) + chosen}" in losses:
            chosen += 1
        if len(children) + chosen < self.branch:
            return name, len(children) + chosen
        total = math.log(visits + losses.get(name, 0))

        def bound(child: Trial) -> float:
            count = child.visits + losses.get(child.name, 0)
            return child.value / count + self.c * math.sqrt(total / count)

        for child in sorted((child for child in children if not child.closed), key=bound, reverse=True):
            if child.depth < self.depth:
                found = self._descend(tree, child.name, child.visits, losses)
                if found is not None:
                    return found
        return None
