"""Policies of a user's own over `search.tree`: three from the literature find the way through one puzzle."""

from __future__ import annotations

import dspy
import pytest

from dspyer.search import Tree, Trial, tree

Chosen = list[tuple[str, int]]
DEPTH = 5


class Move(dspy.Module):
    """From one number to the next: by adding 3 at an even rollout, by doubling at an odd one."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, int] = {}

    def forward(self, number: int) -> dspy.Prediction:
        self.made[number] = self.made.get(number, -1) + 1
        return dspy.Prediction(number=2 * number if self.made[number] % 2 else number + 3)


def near(number: int) -> float:
    return 1 / (1 + abs(17 - number))


def solved(number: int) -> bool:
    return number == 17


def found(given: Tree) -> bool:
    return len(given) >= 60 or any(trial.done and not trial.failure for trial in given.last)


def leaves(given: Tree) -> list[Trial]:
    return [trial for trial in [given.root, *given.values()] if not trial.done and not given.next_place(trial)]


def depth_first(given: Tree, depth: int = DEPTH) -> Chosen:
    """Continues the newest trial that has a place left, down to a depth."""
    if found(given):
        return []
    for trial in reversed([given.root, *given.values()]):
        place = given.next_place(trial)
        if not trial.done and trial.depth < depth and place < 2:
            return [(trial.name, place)]
    return []


def iterative_deepening(given: Tree) -> Chosen:
    """Searches all trials of one depth before the first of the next depth."""
    return next((chosen for depth in range(1, DEPTH + 1) if (chosen := depth_first(given, depth))), [])


def tree_of_thoughts(given: Tree) -> Chosen:
    """Continues the best of the deepest trials, and turns back from those that are rated too low."""
    if found(given):
        return []
    good = [trial for trial in leaves(given) if trial.depth < DEPTH and (trial.reward is None or trial.reward >= 0.06)]
    best = max(good, key=lambda trial: (trial.depth, trial.reward or 0.0), default=None)
    return [] if best is None else [(best.name, place) for place in range(2)]


@pytest.mark.parametrize(
    ("policy", "best", "trials"),
    [(depth_first, "0.0.0.1.0", 11), (iterative_deepening, "0.0.0.1.0", 23), (tree_of_thoughts, "0.0.1.0.0.0", 16)],
)
def test_policies_of_the_literature(policy: object, best: str, trials: int) -> None:
    graph = tree(Move(), near, policy, writes=["number"], done=solved)  # type: ignore[arg-type]
    run = graph.compile(max_concurrency=1).run({"number": 1})
    assert (run.state["number"], run.state["best"], len(run.state["tree"])) == (17, best, trials)
