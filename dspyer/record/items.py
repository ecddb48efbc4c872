"""`Items`: how far a map is, and what its items gave, from the same facts as the steps of a `Record`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dspyer.failure import Failure
from dspyer.ids import ids_around, is_within, part_id
from dspyer.record.making import RunEnding, RunSteps, items_of_commit
from dspyer.scheduler.lineage import sent_to
from dspyer.values.frozen import thaw


class Items(NamedTuple):
    """The items of a map at its last visit, as far as the run has come.

    Attributes:
        node: the map.
        total: how many there are; 0 of a map that the run has not reached.
        done: how many have a result.
        failed: how many have failed.
        waiting: how many wait for an answer.
        results: the results by index.
        failures: the failures by index. Those that `failures=` lets pass are known once the map has ended.
    """

    node: str
    total: int
    done: int
    failed: int
    waiting: int
    results: Mapping[int, Any]
    failures: Mapping[int, Failure]

    def __repr__(self) -> str:
        return f"<items of {self}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of the numbers."""
        return {name: getattr(self, name) for name in ("node", "total", "done", "failed", "waiting")}

    def __str__(self) -> str:
        items = "item" if self.total == 1 else "items"
        more = "".join([f", {n:,} {what}" for n, what in ((self.failed, "failed"), (self.waiting, "waiting")) if n])
        return f"{self.node}: {self.done:,} of {self.total:,} {items}{more}"


def items_of(steps: RunSteps, ending: RunEnding, node: str) -> Items:
    """The items of a map of the run's own graph.

    Raises:
        KeyError: if the graph has no such map; it lists those that it has.
    """
    graph = steps.graph
    if node not in graph.maps:
        known = ", ".join(map(repr, graph.maps)) or "none"
        raise KeyError(f"{node!r} is no map of graph {graph.name!r}; its maps: {known}")
    # A branch that has stopped there is behind all commits.
    stop = next((one for one in reversed(list(steps.stops(ending))) if one.node == node), None)
    if stop is not None:
        parents = tuple([steps.places[head.id] for head in stop.heads.values()])
        attempts = (*ending.failed, *ending.failures)
        return _items_left(steps, node, stop.local, stop.branch, parents, stop.failure, attempts)
    results, failures = dict[int, Any](), dict[int, Failure]()
    entry = next((one for one in reversed(list(steps.in_order())) if one.commit.node == node), None)
    if entry is not None and entry.commit.failure is not None:  # an error edge took it, and closed its questions
        commit = entry.commit
        attempts = (*commit.failed_attempts, entry.commit.failure)
        left = _items_left(steps, node, commit.id, commit.branch, entry.parents, commit.failure, attempts)
        return left._replace(waiting=0)
    if entry is not None:
        for index, failure, result in items_of_commit(graph, graph.maps[node], entry.commit, entry.state):
            if failure is None:
                results[index] = thaw(result)
            else:
                failures[index] = failure
    return Items(node, len(results) + len(failures), len(results), len(failures), 0, results, failures)


_NOTE = re.compile(r"^in .*\[(\d+)\] of the map ", re.MULTILINE)
"""The note of an exception of an item that has failed its map: no other place says which item it was."""


def _items_left(
    steps: RunSteps,
    node: str,
    local: str,
    branch: tuple[int, ...],
    parents: tuple[int, ...],
    failure: Failure | None,
    attempts: Iterable[Failure],
) -> Items:
    """The items of a map that has not ended, or that has failed: its execution has committed none of them."""
    mapped, facts = steps.graph.maps[node], steps.facts.get(local)
    sent = sent_to(steps.log, parents, branch) if parents else {}
    state = steps.log[parents[0]].state if parents else {}
    total = len((sent if mapped.over in sent else state).get(mapped.over, ()))

    results: dict[int, Any] = {}
    waiting: set[int] = set()
    if facts is not None:
        ids = {part_id(local, index): index for index in range(total)}
        results = {index: thaw(facts.items[name]) for name, index in ids.items() if name in facts.items}
        open_ones = [one.question.execution for one in facts.asked.values() if one.answer is None]
        waiting = {ids[name] for one in open_ones for name in (*ids_around(one), one) if name in ids}
    failed = [one for one in attempts if is_within(one.execution, local)]
    failures = {one.index: one for one in failed if one.index is not None and one.index not in results}
    if failure is not None and (found := _NOTE.search(failure.traceback)) and not failures:
        failures[int(found[1])] = failure
    waiting -= results.keys() | failures.keys()
    return Items(node, total, len(results), len(failures), len(waiting), results, failures)
