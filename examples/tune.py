"""A support desk, tuned with a metric for each field: where it loses, its culprits, and what optimizers make of it.

python examples/tune.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/tune.py   # with a real model: some 3,000 calls

START ─┬─ classify ─┐
       ├─ judge    ─┼─ assign ── END
       └─ quote    ─┘

`assign` is a function of what the others wrote: always the last writer of a queue, and never the cause of a wrong one.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel
from triage import Category, Classify, Extract, Judge, Urgency, tickets

from dspyer import END, START, CompiledGraph, Graph, Run, optimize

TEAMS = {
    "billing": "accounts",
    "bug": "engineering",
    "how_to": "support",
    "account_access": "support",
    "feature_request": "product",
    "cancellation": "accounts",
}
WHEN = {"high": "now", "normal": "this week", "low": "when there is time"}
TRAIN, DEV, TEST, CALLS = 144, 24, 96, 300


class Ticket(BaseModel):
    """One ticket on its way to a team."""

    text: str
    category: Category | None = None
    urgency: Urgency | None = None
    wish: str = ""
    queue: str = ""
    note: str = ""


def queue_of(category: str, urgency: str) -> str:
    return f"{TEAMS[category]}, {WHEN[urgency]}"


def assign(category: str, urgency: str, wish: str) -> dict[str, Any]:
    return {"queue": queue_of(category, urgency), "note": f"The writer says: {wish}"}


def desk() -> CompiledGraph:
    """Build and compile the graph."""
    graph = Graph(Ticket, name="Desk", inputs=["text"])
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("judge", dspy.Predict(Judge))
    graph.add_node("quote", dspy.Predict(Extract))
    graph.add_node("assign", assign, writes=["queue", "note"])
    graph.add_edge(START, ["classify", "judge", "quote"])
    graph.add_edge(["classify", "judge", "quote"], "assign")
    graph.add_edge("assign", END)
    return graph.compile()


def examples(split: Any) -> list[dspy.Example]:
    """The labelled tickets of one split, with the queue that follows from the labels."""
    return [
        dspy.Example(
            text=ticket.text,
            category=ticket.category,
            urgency=ticket.urgency,
            queue=queue_of(ticket.category, ticket.urgency),
        ).with_inputs("text")
        for ticket in tickets(split)
    ]


metric = optimize.by_field(
    {
        "category": optimize.equals("category"),
        "urgency": optimize.equals("urgency"),
        "queue": optimize.equals("queue"),
    },
    goal="queue",
)


def tuners(gepa: optimize.GEPA) -> dict[str, Callable[[CompiledGraph], Any]]:
    """Functions that tune a program, by their name in the table. Only the first has labels as demonstrations."""
    train, dev = examples("train")[:TRAIN], examples("dev")[:DEV]
    labeled = dspy.LabeledFewShot(k=16)
    bootstrap = dspy.BootstrapFewShot(metric=metric, max_bootstrapped_demos=16, max_labeled_demos=0)
    few_shot = optimize.FewShot(metric, max_demos=16, max_labeled_demos=0, rollouts=8)
    return {
        "dspy.LabeledFewShot": lambda program: labeled.compile(program, trainset=train),
        "dspy.BootstrapFewShot": lambda program: bootstrap.compile(program, trainset=train),
        "optimize.FewShot": lambda program: few_shot.compile(program, trainset=train),
        "optimize.GEPA": lambda program: gepa.compile(program, trainset=train, valset=dev),
    }


def scores(runs: list[Run], held_out: list[dspy.Example]) -> str:
    """The share of right values of each field, as cells of the table."""
    shares = [
        sum(run.state[field] == example[field] for run, example in zip(runs, held_out, strict=True)) / len(runs)
        for field in metric.metrics
    ]
    return "".join(f"{share:>10.0%}" for share in shares)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the optimizers, which print and log a page each."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def show_culprits(program: CompiledGraph, runs: list[Run], held_out: list[dspy.Example]) -> None:
    """Where the queues are lost; who wrote the wrong ones last, and who caused them."""
    print(optimize.headroom(program, held_out, metric))
    wrong = [(run, one) for run, one in zip(runs, held_out, strict=True) if run.state["queue"] != one.queue]
    writers = Counter(run.blame("queue").node for run, _ in wrong)
    shares: Counter[str] = Counter()
    for _, example in wrong:
        shares.update(optimize.culprits(program, example, metric).shares)
    print(f"\nOf the {len(wrong)} wrong queues")
    print("  last writer  ", ", ".join(f"{node} {count}" for node, count in writers.most_common()))
    print("  culprits     ", ", ".join(f"{node} {share:g}" for node, share in shares.most_common()))
    _, example = wrong[0]
    print(f"\nThe first of them, {example.text[:60]}...")
    print(optimize.culprits(program, example, metric))


def compare(lm: dspy.LM) -> None:
    """Score the desk as it is written, and as each optimizer has tuned it."""
    held_out = examples("test")[:TEST]

    def ask(program: Any) -> list[Run]:
        return [program.run({"text": example.text}) for example in held_out]

    program = desk()
    runs = ask(program)
    show_culprits(program, runs, held_out)
    print(f"\n{f'of {len(held_out)} tickets held out':<26}" + "".join(f"{field:>10}" for field in metric.metrics))
    print(f"  {'as written':<24}{scores(runs, held_out)}")
    gepa = optimize.GEPA(
        metric, reflection_lm=lm, max_metric_calls=CALLS, reflection_minibatch_size=24, num_threads=4, seed=1
    )
    for name, tune in tuners(gepa).items():
        with quietly():
            tuned = tune(desk())
        print(f"  {name:<24}{scores(ask(tuned), held_out)}")
    print(f"\n{gepa.stats}")


def main() -> None:
    lm = language_model()
    dspy.configure(lm=lm)
    compare(lm)  # to go on after a kill, start it again: DSPy's cache on disk has the responses


if __name__ == "__main__":
    main()
