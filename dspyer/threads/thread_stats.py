"""The figures of a thread's nodes, from its rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspyer.display.stats import FinalFailure, Stats, count_stats, parent_of
from dspyer.events import Commit
from dspyer.failure import Failure
from dspyer.graph.spec import GraphSpec
from dspyer.runtime.run_stats import counted_parts

UNKNOWN = (
    "a store keeps the tokens of a run when it ends: those of a process that was killed are missing",
    "tokens of each node, LM calls and USD are known to run.stats() alone",
    "of failures, those are counted that were committed or ended the last run",
)


def stats_of_history(
    graph: GraphSpec, commits: Sequence[Commit], failures: Sequence[Failure], usage: Mapping[str, Mapping[str, Any]]
) -> Stats:
    """The figures of the nodes of a thread, from its commits, oldest first, and the failures of its last run."""
    shown = None if graph.redaction is None else [graph.redaction.commit(commit) for commit in commits]
    return count_stats(
        tuple(graph.nodes),
        commits,
        [FinalFailure(failure, (), parent_of(failure, commits)) for failure in failures],
        **counted_parts(graph.nodes, graph.topology.schema),
        items={},
        lm_calls=None,
        usage=usage,
        unknown=UNKNOWN,
        shown=shown,
    )
