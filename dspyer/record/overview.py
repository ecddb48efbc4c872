"""`Overview`: what the runs of a store come to, from their headers and the rows of their ends alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from dspyer.clock import wall
from dspyer.errors import StoreError
from dspyer.log.reader import HistoryReader
from dspyer.log.rows import EndRow, RowKind, sum_usage, total_cost
from dspyer.record.stored import failures_of_run
from dspyer.record_codec import encode
from dspyer.stores.base import ListedRun, RunQuery, Store

MOST = 20_000
"""Runs that are counted at most: the newest ones."""

BATCH = 1_000
BUCKETS = 30
WIDTHS = (60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
"""Seconds of a bucket: the first with which `BUCKETS` are about enough."""

NUMBER = re.compile(r"\d+(?:[.,:_-]\d+)*")
LONGEST = 300
"""Characters of the message of a group of failures."""


class Figures(NamedTuple):
    """The figures of some runs.

    Attributes:
        name: the name of a graph, a node or a language model.
        runs: how many runs.
        failed: how many of them have failed; of a node, those that it has failed.
        p50: the seconds in which half of them have ended; of a node, that it took in half of them. None for none.
        p95: the same of 95 of 100.
        tokens: of prompts and of responses.
        cost: US dollars; None if the price of a model is not known.
    """

    name: str
    runs: int
    failed: int
    p50: float | None
    p95: float | None
    tokens: tuple[int, int]
    cost: float | None


class Bucket(NamedTuple):
    """The figures of the runs that were started in a part of the time, from `since` on and before `until`."""

    since: datetime
    until: datetime
    runs: int
    failed: int
    p50: float | None
    p95: float | None
    tokens: tuple[int, int]
    cost: float | None


@dataclass(frozen=True)
class Cause:
    """The failures of one graph, node and type that have ended runs; in `message`, `#` stands for each number."""

    graph: str
    node: str
    type: str
    message: str
    count: int


class Overview(NamedTuple):
    """The sum of many runs. `archive.overview()` makes it.

    Attributes:
        since: from when it counts: the newest 20,000 runs are counted.
        runs: how many runs; corrections by `thread.update` are none.
        failed: how many of them have failed.
        p50: the seconds in which half of those that have ended did so; None for none.
        p95: the same of 95 of 100.
        tokens: of prompts and of responses.
        cost: US dollars; None if the price of a model is not known.
        buckets: the same by time, oldest first.
        graphs: the same by graph, that with most runs first, as what follows.
        nodes: by node of these graphs: the runs that came to it, and what it took and has used in them.
        models: by language model: the runs that have called it, and what it has used.
        failures: why runs have failed, the most frequent cause first.

    Example:
        >>> from dspyer import END, START, Archive, Graph
        >>> from dspyer.stores import Memory
        >>> store = Memory()
        >>> graph = Graph(name="Halves").add_node("half", lambda n: {"h": 1 / n},
        ...     writes=["h"]).add_path(START, "half", END)
        >>> program = graph.compile(store=store)
        >>> for number in (0, 1, 2):
        ...     _ = program.thread(f"t{number}").run({"n": number})
        >>> found = Archive(store).overview()
        >>> (found.runs, found.failed, found.nodes[0].name, found.failures)
        (3, 1, 'half', (Cause(graph='Halves', node='half', type='ZeroDivisionError',
        message='division by zero', count=1),))
    """

    since: datetime | None = None
    runs: int = 0
    failed: int = 0
    p50: float | None = None
    p95: float | None = None
    tokens: tuple[int, int] = (0, 0)
    cost: float | None = 0.0
    buckets: tuple[Bucket, ...] = ()
    graphs: tuple[Figures, ...] = ()
    nodes: tuple[Figures, ...] = ()
    models: tuple[Figures, ...] = ()
    failures: tuple[Cause, ...] = ()

    @classmethod
    def of(cls, reader: HistoryReader, query: RunQuery) -> Overview:
        """The overview of the runs that are chosen."""
        tables: dict[str, dict[str, list[Counts]]] = {name: {} for name in TABLES}
        by_time: list[tuple[float, Counts]] = []
        causes: Counter[tuple[str, str, str, str]] = Counter()
        for listed, end in islice(_runs(reader.store, query), MOST):
            graph, failed = str(listed.run.header.get("graph", "")), listed.status == "failed"
            took = None if end.ended is None else max(0.0, end.ended / 1_000 - listed.started)
            counts = failed, took, [*end.usage.values()]
            by_time.append((listed.started, counts))
            tables["graphs"].setdefault(graph, []).append(counts)
            for model, spent in end.usage.items():
                tables["models"].setdefault(model, []).append((failed, took, [spent]))
            for node, (_, lost, seconds) in end.visits.items():
                used = [*filter(None, [end.nodes.get(node)])]
                tables["nodes"].setdefault(node, []).append((lost > 0, seconds, used))
            for one in failures_of_run(reader, listed) if failed else ():
                causes[graph, one.node, one.type, NUMBER.sub("#", one.message)[:LONGEST]] += 1
        if not by_time:
            return cls()
        # Of more runs than are counted, the oldest of the newest begins.
        begin = by_time[-1][0] if query.since is None or len(by_time) == MOST else query.since
        rows = [[_figures(of, counts) for of, counts in tables[name].items()] for name in TABLES]
        graphs, nodes, models = [tuple(sorted(some, key=lambda row: (-row.runs, row.name))) for some in rows]
        whole = _figures("", [counts for _, counts in by_time])
        buckets = tuple(_buckets(begin, wall() if query.until is None else query.until, by_time))
        failures = tuple([Cause(*cause, count) for cause, count in causes.most_common()])
        since = datetime.fromtimestamp(begin, UTC)
        return cls(since, *whole[1:], buckets, graphs, nodes, models, failures)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, times as ISO 8601."""
        found: dict[str, Any] = encode(self)
        return found

    def __str__(self) -> str:
        since = "" if self.since is None else f" since {self.since.astimezone():%Y-%m-%d %H:%M}"
        whole = Figures(f"all{since}", self.runs, self.failed, self.p50, self.p95, self.tokens, self.cost)
        rows = [("", "RUNS", "FAILED", "HALF IN", "95% IN", "TOKENS", "USD"), _cells(whole)]
        for title in TABLES:
            rows += [_cells(row._replace(name=f"{title[:-1]} {row.name}")) for row in getattr(self, title)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        causes = [f"{one.count:,} x {one.graph}, {one.node}: {one.type}: {one.message}" for one in self.failures]
        return "\n".join([*lines, *causes])


TABLES = ("graphs", "nodes", "models")
"""The attributes that have figures by name."""


def _cells(row: Figures) -> tuple[str, ...]:
    times = ["" if one is None else f"{one:,.3g} s" for one in (row.p50, row.p95)]
    cost = "?" if row.cost is None else f"{row.cost:,.6g}"
    return row.name, f"{row.runs:,}", f"{row.failed:,}", *times, f"{sum(row.tokens):,}", cost


Counts = tuple[bool, float | None, Sequence[Mapping[str, Any]]]
"""Whether a run has failed, how many seconds it took, and what it has used."""


def _figures(name: str, counted: Sequence[Counts]) -> Figures:
    times = sorted([took for _, took, _ in counted if took is not None])
    used = sum_usage([{"": one} for _, _, some in counted for one in some])
    p50, p95 = [times[min(int(len(times) * part), len(times) - 1)] if times else None for part in (0.5, 0.95)]
    tokens = [sum([one.get(kind, 0) for one in used.values()]) for kind in ("prompt_tokens", "completion_tokens")]
    failed = sum([one[0] for one in counted])
    return Figures(name, len(counted), failed, p50, p95, (tokens[0], tokens[1]), total_cost(used))


def _runs(store: Store, query: RunQuery) -> Iterator[tuple[ListedRun, EndRow]]:
    """The runs that are counted, newest first, each with its end; an empty one for none, or one that is damaged."""
    query = query._replace(limit=BATCH)
    while True:
        batch = store.list_runs(query)
        for listed in batch:
            end = EndRow(listed.status)
            with suppress(StoreError):
                end = end if listed.end is None else EndRow.of(listed.end)
            first = store.rows(listed.run.id, 0, 0) if (end.status, end.steps) == ("completed", 1) else ()
            if [row.kind for row in first] != [RowKind.UPDATE]:  # else `thread.update` has made it
                yield listed, end
        if len(batch) < BATCH:
            return
        query = query._replace(after=batch[-1].place)


def _buckets(begin: float, until: float, runs: Iterable[tuple[float, Counts]]) -> Iterator[Bucket]:
    """The buckets from a time until another one, those without a run too."""
    width = next((one for one in WIDTHS if until - begin <= one * BUCKETS), 0) or int((until - begin) / BUCKETS) + 1
    first = int(begin // width)
    groups: list[list[Counts]] = [[] for _ in range(first, int(until // width) + 1)]
    for started, counts in runs:
        groups[min(max(int(started // width) - first, 0), len(groups) - 1)].append(counts)
    for index, group in enumerate(groups, first):
        since, end = [datetime.fromtimestamp(at * width, UTC) for at in (index, index + 1)]
        yield Bucket(since, end, *_figures("", group)[1:])
