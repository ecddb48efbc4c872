"""Scanned letters are read by a pool of processes; a worker is killed, and another pool reads only what is missing.

python examples/scans.py

Reading a scan takes time on a processor, so that function alone goes to the pool. The graph, its language model and its
store stay in this process, and each letter is stored when it has been read.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel
from scanner import read_scan, scanned
from triage import Category, Classify, tickets

from dspyer import END, START, CompiledGraph, Graph

LETTERS = 60
WORKERS = 2


class Mail(BaseModel):
    """The letters of a day."""

    scans: list[bytes]
    texts: list[str] = []
    categories: list[Category] = []


# --- the graph


def read(scan: bytes, pool: Executor) -> str:
    """Have one letter read by the pool, and wait for its text."""
    return pool.submit(read_scan, scan).result()


def build(store: Path) -> CompiledGraph:
    """Two maps: the first waits for the pool, the second for the language model."""
    graph = Graph(Mail, inputs=["scans"], name="Mail")
    graph.add_map("read", read, over="scans", item="scan", into="texts", max_concurrency=2 * WORKERS)
    graph.add_map("classify", dspy.Predict(Classify), over="texts", item="text", into="categories")
    return graph.add_path(START, "read", "classify", END).compile(store=store)


# --- the pool: one of its processes is killed on the way, as by a machine that is out of memory


class Pool(ProcessPoolExecutor):
    """Counts its tasks, and kills one of its processes after so many."""

    def __init__(self, kill_after: int | None = None) -> None:
        # "spawn", since a process with threads, as every program has, must not be forked.
        super().__init__(WORKERS, mp_context=multiprocessing.get_context("spawn"))
        self.kill_after, self.tasks, self.read = kill_after, 0, 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(*args, **kwargs)
        self.tasks += 1
        future.add_done_callback(self.count)
        return future

    def count(self, future: Future[Any]) -> None:
        if isinstance(future.exception(), BrokenExecutor):
            return
        self.read += 1
        if self.read == self.kill_after:
            os.kill(next(iter(self._processes)), signal.SIGKILL)


def main() -> None:
    dspy.configure(lm=language_model())
    letters = [ticket.text for ticket in tickets("dev") if ticket.text.isascii()][:LETTERS]
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder) / "mail.db")
        with Pool(kill_after=LETTERS // 3) as first:
            run = program.with_resources({Executor: first}).thread("monday").run({"scans": scanned(letters)})
            print(f"The first pool loses a process: the run has {run.status}, {type(run.error).__name__}")
        with Pool() as second:
            run = program.with_resources({Executor: second}).thread("monday").resume()
            print(f"The second pool: the run has {run.status}")
    right = sum(text == letter for text, letter in zip(run.state["texts"], letters, strict=True))
    print(f"{right} of {LETTERS} letters were read as they were written")
    print(f"{len(run.state['categories'])} were classified, by the language model of this process")
    print(f"\nread by the pools: {first.read} + {second.read}, for {LETTERS} letters")
    print(f"tasks lost with the process: {first.tasks - first.read}, of at most {2 * WORKERS} at a time")


if __name__ == "__main__":
    main()
