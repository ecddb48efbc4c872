"""2,000 tickets are scored on a Dask cluster of this machine; a worker is killed on the way, and the score is the same.

python examples/batch_dask.py                  # needs: pip install distributed
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from itertools import cycle, islice

import dspy
from dask.distributed import Client, LocalCluster
from model import language_model
from triage import Classify, Judge, tickets

from dspyer import END, START, CompiledGraph, Graph

TICKETS = 2000
WORKERS = 2


def build() -> CompiledGraph:
    """Two predictors at once, with demonstrations."""
    graph = Graph(name="Triage")
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("judge", dspy.Predict(Judge))
    graph.add_edge(START, ["classify", "judge"])
    graph.add_edge(["classify", "judge"], END)
    student = graph.compile()
    tuned: CompiledGraph = dspy.LabeledFewShot(k=8).compile(student, trainset=texts(tickets("train")))
    return tuned


def texts(examples: list[dspy.Example]) -> list[dspy.Example]:
    return [example.with_inputs("text") for example in examples]


def right(ticket: dspy.Example, found: dspy.Prediction) -> float:
    """The share of the labels that are right."""
    return ((found.category == ticket.category) + (found.urgency == ticket.urgency)) / 2


class Killer:
    """A metric that kills a worker of the cluster when a quarter of the tickets is scored."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster, self.scored, self.lock = cluster, 0, threading.Lock()

    def __call__(self, ticket: dspy.Example, found: dspy.Prediction) -> float:
        with self.lock:
            self.scored += 1
            if self.scored == TICKETS // 4:
                worker = self.cluster.workers[0]
                os.kill(worker.pid, signal.SIGKILL)
                print(f"after {self.scored} tickets, a worker is killed")
        return right(ticket, found)


def main() -> None:
    dspy.configure(lm=language_model())
    program = build()
    devset = list(islice(cycle(texts(tickets("dev") + tickets("test"))), TICKETS))
    here = dspy.Evaluate(devset=devset, metric=right, num_threads=4, display_progress=False)(program)
    print(f"in this process: {here.score} % of {len(here.results)} tickets")

    # A port that is free, in the place of 8787; and no log of the worker that is killed on purpose.
    cluster = LocalCluster(WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL)
    with cluster, Client(cluster) as client:
        far = program.with_executor(client.get_executor())
        score = dspy.Evaluate(devset=devset, metric=Killer(cluster), num_threads=4 * WORKERS, display_progress=False)
        there = score(far)
    print(f"on {WORKERS} workers: {there.score} % of {len(there.results)} tickets")
    same = all(one[1].toDict() == other[1].toDict() for one, other in zip(here.results, there.results, strict=True))
    print(f"the same predictions: {same}")


if __name__ == "__main__":
    main()
