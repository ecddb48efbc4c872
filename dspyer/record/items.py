"""`Items`: how far a map is, and what its items gave, as the steps of a `Record` show it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dspyer.errors import StoreError
from dspyer.failure import Failure
from dspyer.ids import Address
from dspyer.record.making import RecordStep
from dspyer.values.frozen import thaw

if TYPE_CHECKING:
    from dspyer.record.record import Record

ITEMS = ("item", "trial")
"""The kinds of steps that are items of a map."""


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

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of the numbers."""
        return {name: getattr(self, name) for name in ("node", "total", "done", "failed", "waiting")}

    def __str__(self) -> str:
        items = "item" if self.total == 1 else "items"
        more = "".join([f", {n:,} {what}" for n, what in ((self.failed, "failed"), (self.waiting, "waiting")) if n])
        return f"{self.node}: {self.done:,} of {self.total:,} {items}{more}"


def maps_of(record: Record) -> list[Items]:
    """The maps of the run's own graph that were given items, each at the last visit that the run has made."""
    visits: dict[str, RecordStep] = {}
    inside: dict[str, list[RecordStep]] = {}
    for step in record.steps:
        if step.parent is None and step.node in record.graph.maps:
            visits[step.node], inside[step.id] = step, []
        elif step.kind in ITEMS and step.parent in inside:
            inside[step.parent].append(step)
    found = [_items_at(record, visit, inside[visit.id]) for visit in visits.values()]
    return [one for one in found if one.total]


_NOTE = re.compile(r"^in .*\[(\d+)\] of the map ", re.MULTILINE)
"""The note of an exception of an item that has failed its map: no other place says which item it was."""


def _items_at(record: Record, visit: RecordStep, items: list[RecordStep]) -> Items:
    by_index = {int(Address.parse(step.id).keys[-1]): step for step in items}
    results = {index: thaw(step.wrote["result"].value) for index, step in by_index.items() if step.status == "done"}
    failures = {index: step.failure for index, step in by_index.items() if step.failure is not None}
    lost = visit.failure
    if lost is not None and lost.index is not None:  # an item that has failed its map may have no step of its own
        failures.setdefault(lost.index, lost)
    elif lost is not None and not failures and (named := _NOTE.search(lost.traceback)):
        failures[int(named[1])] = lost
    given: Sized = ()
    if visit.status != "done" and visit.after:  # only the list says how many there are
        over = record.graph.maps[visit.node].over
        with suppress(StoreError):  # of a damaged state, those that have left something are counted
            given = visit.sent.get(over, record.state(visit.after[0]).get(over, ()))
    # An error edge that has taken the failure of a map has closed its questions.
    waits = {index for index, step in by_index.items() if step.status == "waiting" and visit.commit is None}
    waiting = len(waits - failures.keys())
    total = max(len(given), len(by_index.keys() | failures.keys()))
    return Items(visit.node, total, len(results), len(failures), waiting, results, failures)
