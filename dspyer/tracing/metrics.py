"""Metrics of OpenTelemetry: plain numbers that its readers ask for, and the duration of each run, which is recorded.

A step costs nothing while it runs: its commit is in the log of its run. What is new there is counted when a reader asks
and when the run ends; of a stored run, what is written. So the numbers are those of the history, and no attempt, kept
commit or resume counts twice. Names of threads, and values, are in no attribute.

`dspyer.tracing` imports this module once a program has imported `opentelemetry.metrics`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from threading import RLock
from typing import Any, ClassVar, Final

import dspy
from opentelemetry import metrics

from dspyer.errors import error_text
from dspyer.extend import Layer, Place
from dspyer.lm.tap import Subscriber, subscribing

logger = logging.getLogger("dspyer")

ACTIVE: Final = "dspyer.runs.active"
INSTRUMENTS: Final = {
    ACTIVE: ("{run}", "graph", "Runs that are going on."),
    "dspyer.runs": ("{run}", "graph status", "Runs that have ended."),
    "dspyer.resumes": ("{run}", "graph", "Runs that were resumed."),
    "dspyer.takeovers": ("{run}", "graph", "Runs that have replaced the owner of their thread."),
    "dspyer.steps": ("{step}", "graph node", "Commits of nodes."),
    "dspyer.node.errors": ("{error}", "graph node", "Attempts of nodes that have raised."),
    "dspyer.tokens": ("{token}", "graph model direction", "Tokens of LM calls; none for a response from a cache."),
    "dspyer.cost": ("USD", "graph model", "Cost of LM calls whose price is known."),
    "dspyer.store.writes": ("{write}", "store", "Transactions that stores have written."),
    "dspyer.store.write.time": ("s", "store", "Time that they took."),
    "dspyer.store.pool.wait": ("s", "store", "Time for which calls have waited for a connection."),
}
"""What readers ask for: unit, attributes, description. `docs/guides/tracing.md` has the same table."""

BOUNDS: Final = [0.01 * 2**n for n in range(18)]
"""Of the duration, seconds: those of the conventions for LM calls, 0.01 to 82, and on to 22 minutes."""


class Metrics(Layer):
    """The numbers of one meter provider, and the layer that counts runs. May be used from any thread."""

    place: ClassVar[Place] = "outside"

    def __init__(self, provider: metrics.MeterProvider) -> None:
        self.provider = provider
        self._values = defaultdict[tuple[str, ...], float](int)  # by instrument and values of attributes
        self.forget_runs()
        meter = provider.get_meter("dspyer")
        self._duration = meter.create_histogram(
            "dspyer.run.duration", "s", "How long runs took.", explicit_bucket_boundaries_advisory=BOUNDS
        )
        for name, (unit, attributes, text) in INSTRUMENTS.items():
            make = meter.create_observable_up_down_counter if name == ACTIVE else meter.create_observable_counter
            make(name, [partial(self._observed, name, attributes.split())], unit, text)

    def forget_runs(self) -> None:
        """In a forked process: the runs are its parent's."""
        self._open: dict[Any, int] = {}  # how many commits of each run are counted, or were made before
        self._values.update({key: 0 for key in self._values if key[0] == ACTIVE})

    def add(self, amount: float, name: str, *attributes: str) -> None:
        """Counts."""
        with _lock:
            self._values[name, *attributes] += amount

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        """A block in which a run is counted."""
        graph = run.graph.name
        self._open[run] = len(run.run.log)
        if run.inside is None:
            self.add(1, ACTIVE, graph)
            self.add(run.records.resumes > 0, "dspyer.resumes", graph)
            self.add(run.records.took_over, "dspyer.takeovers", graph)
        try:
            # Each LM call counts for the innermost graph, as steps do.
            with dspy.context(**subscribing(LMCounts(self, graph), instead_of=(LMCounts,))):
                yield
        finally:
            self._end(run, graph)

    def _end(self, run: Any, graph: str) -> None:
        with _lock:
            if run not in self._open:
                return  # it is that of a parent process
            self._count(run)
            del self._open[run]
            for failed in run.run.failures:
                self.add(1 + len(failed.failed_attempts), "dspyer.node.errors", graph, failed.node)
            if run.inside is not None:
                return
            status = run.ending[0]
            self.add(-1, ACTIVE, graph)
            self.add(1, "dspyer.runs", graph, status)
        try:
            self._duration.record(time.perf_counter() - run.began[1], {"graph": graph, "status": status})
        except Exception as error:  # noqa: BLE001 - the run counts, not its metrics
            _warn(f"OpenTelemetry could not record the duration of a run: {error_text(error)}")

    def _count(self, run: Any) -> None:
        """Counts the commits of a run since the last time; called with the lock."""
        log, graph = (run.run if run.log is None else run.log.run).log, run.graph
        for entry in islice(log, self._open[run], None):
            self._open[run] += 1
            commit, node = entry.commit, graph.nodes.get(entry.commit.node)
            if node is not None:  # else the inputs, or a join
                items = commit.patch.get(node.mapped.failures, ()) if node.mapped else ()
                failed = len(commit.failed_attempts) + (commit.failure is not None) + len(items)
                self._values["dspyer.steps", graph.name, commit.node] += 1
                self._values["dspyer.node.errors", graph.name, commit.node] += failed

    def _observed(self, name: str, attributes: list[str], _: object) -> list[metrics.Observation]:
        with _lock:
            for run in list(self._open):  # others begin meanwhile
                self._count(run)
            found = [(key[1:], value) for key, value in self._values.items() if key[0] == name]
        return [metrics.Observation(value, dict(zip(attributes, key, strict=True))) for key, value in found]


class LMCounts(Subscriber):
    """Counts what the LM calls of a run have used. Those of a worker of an executor are counted there."""

    def __init__(self, numbers: Metrics, graph: str) -> None:
        self._add, self._graph = numbers.add, graph

    def ended(self, call: Any) -> None:
        """Counts a call."""
        of = self._graph, str(call.lm.model)
        for counts in call.counts:
            self._add(counts.prompt, "dspyer.tokens", *of, "input")
            self._add(counts.response, "dspyer.tokens", *of, "output")
        if (cost := call.cost) is not None:
            self._add(cost, "dspyer.cost", *of)


_lock = RLock()  # a handler of a signal may ask for the numbers
_made: list[Metrics] = []  # of the provider: a program sets one


def metrics_here() -> list[Metrics]:
    """The numbers of the program's meter provider; none if it has set none."""
    try:
        provider = metrics.get_meter_provider()
        if _made and _made[0].provider is provider:  # each commit asks
            return _made
        if type(provider).__module__.startswith("opentelemetry.metrics"):
            return []  # of the API itself, which counts nothing
        with _lock:
            if not _made or _made[0].provider is not provider:  # another thread may have made them meanwhile
                _made[:] = [Metrics(provider)]
            return _made
    except Exception as error:  # noqa: BLE001 - of a provider that the environment names: the run goes on
        _warn(f"OpenTelemetry has no usable meter provider, so nothing is counted: {error_text(error)}")
        return []


def add_store_time(what: str, store: Any, seconds: float) -> None:
    """Counts a write of a store, or a wait for a connection, by the class of the store: an address may name people."""
    for numbers in metrics_here():
        while "store" in vars(store):  # it is around another one; one over many has none
            store = store.store
        kind = _kind(type(store).__mro__)
        numbers.add(seconds, f"dspyer.store.{what}", kind)
        if what == "write.time":
            numbers.add(1, "dspyer.store.writes", kind)


@lru_cache
def _kind(classes: tuple[type, ...]) -> str:
    return next(cls.__name__ for cls in classes if not cls.__name__.startswith("_")).lower()


@lru_cache
def _warn(text: str) -> None:
    """Warns once: each step may find the same."""
    logger.warning(text)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = RLock()
    for numbers in _made:
        numbers.forget_runs()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
