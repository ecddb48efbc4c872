"""A puzzle that one try does not solve: best-of, beam search and Monte Carlo tree search, with their calls counted.

python examples/search.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/search.py   # with a real model
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from contextlib import nullcontext
from typing import Any, Literal

import dspy

from dspyer import END, START, Budget, Graph, Run, search
from dspyer.testing import ScriptedLM

MODEL = os.environ.get("DSPYER_MODEL")
START_AT, GOAL, MOVES = 2, 33, 6
CHANGES = {"add 5": lambda n: n + 5, "double": lambda n: 2 * n, "subtract 1": lambda n: n - 1}


class Move(dspy.Module):
    """One move: the model picks it, and code makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.pick = dspy.Predict("number: int, goal: int -> move: Literal['add 5', 'double', 'subtract 1']")

    def forward(self, number: int, goal: int, moves: list[str]) -> dspy.Prediction:
        """Return the next number, and the moves so far."""
        move: Literal["add 5", "double", "subtract 1"] = self.pick(number=number, goal=goal).move
        return dspy.Prediction(number=CHANGES[move](number), moves=[*moves, move])


def near(number: int, goal: int) -> float:
    """Rate a number: 1.0 is the goal."""
    return 1 / (1 + abs(goal - number))


def solved(number: int, goal: int) -> bool:
    """Return whether the goal is reached."""
    return number == goal


def whole_try() -> Graph:
    """Build a graph that moves until the goal is reached, at most `MOVES` times."""
    fields = ["number", "goal", "moves"]
    graph = Graph(name="Try", inputs=fields, outputs=["number", "moves"])
    graph.add_node("move", Move(), writes=["number", "moves"]).add_edge(START, "move")

    def on(number: int, goal: int, moves: list[str]) -> bool:
        return number != goal and len(moves) < MOVES

    return graph.add_conditional_edges("move", on, {True: "move", False: END})


def searches() -> dict[str, Graph]:
    """Build the searches that are compared."""
    steps: dict[str, Any] = {"writes": ["number", "moves"], "done": solved, "threshold": 1.0}
    return {
        "one try": search.best_of(whole_try(), 1, near),
        "best of 12": search.best_of(whole_try(), 12, near, threshold=1.0),
        "beam": search.beam(Move(), near, width=2, branch=3, depth=MOVES, **steps),
        "MCTS": search.mcts(Move(), near, branch=3, depth=MOVES, max_trials=60, c=0.3, **steps),
    }


class Offline:
    """A model that guesses: what it answers depends on the number, and on how often it was asked about it."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def answer(self, prompt: Any) -> dict[str, str]:
        """Return a move."""
        number = int(prompt.inputs["number"])
        self.asked[number] += 1
        first = hashlib.sha256(str(number).encode()).digest()[0]
        return {"move": [*CHANGES][(first + self.asked[number]) % len(CHANGES)]}


def play(graph: Graph) -> Run:
    """Run one search."""
    inputs = {"number": START_AT, "goal": GOAL, "moves": []}
    # Offline, trials are made one by one: the model counts its calls.
    program = graph.compile(max_concurrency=8 if MODEL else 1)
    with nullcontext() if MODEL else ScriptedLM(Offline().answer):
        return program.run(inputs, budget=Budget(requests=500))


def main() -> None:
    """Compare the searches."""
    if MODEL:
        dspy.configure(lm=dspy.LM(MODEL))
    print(f"from {START_AT} to {GOAL} in at most {MOVES} moves: {', '.join(CHANGES)}\n")
    print(f"{'search':12}{'reached':>8}{'trials':>8}{'LM calls':>10}  moves")
    for name, graph in searches().items():
        run = play(graph)
        run.raise_error()
        state, calls = run.state, len(run.trace_steps)
        print(f"{name:12}{state['number']:>8}{len(state['tree']):>8}{calls:>10}  {', '.join(state['moves'])}")


if __name__ == "__main__":
    main()
