"""The figures of a thread's nodes, from its rows and its program's graph."""

from __future__ import annotations

from collections.abc import Sequence

from dspyer.archive.stored_records import stored_stats
from dspyer.display.stats import Stats
from dspyer.events import Commit
from dspyer.failure import Failure
from dspyer.graph.spec import GraphSpec, counted_parts
from dspyer.log.reader import RunRows
from dspyer.redaction import Redactor


def stats_of_history(
    graph: GraphSpec,
    redactor: Redactor | None,
    commits: Sequence[Commit],
    failures: Sequence[Failure],
    runs: Sequence[RunRows],
) -> Stats:
    """The figures of the nodes of a thread: its commits, oldest first, the failures of its last run, and its rows."""
    shown = None if redactor is None else list(map(redactor.commit, commits))
    parts = counted_parts(graph)
    return stored_stats(tuple(graph.nodes), parts["checks"], parts["maps"], commits, failures, runs, shown=shown)
