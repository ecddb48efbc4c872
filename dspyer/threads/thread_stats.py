"""The figures of a thread's nodes, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from dspyer.display.stats import FinalFailure, Stats, count_stats, parent_of
from dspyer.events import Commit
from dspyer.failure import Failure
from dspyer.graph.spec import GraphSpec
from dspyer.persistence.lm_call_reader import stored_calls, stored_usage, unrecorded
from dspyer.persistence.reader import RunRows
from dspyer.runtime.run_stats import counted_parts

UNKNOWN = (
    "of a process that was killed, LM calls are known as far as it had written them",
    "of failures, those are counted that were committed or ended the last run",
)


def stats_of_history(
    graph: GraphSpec,
    commits: Sequence[Commit],
    failures: Sequence[Failure],
    runs: Sequence[RunRows],
) -> Stats:
    """The figures of the nodes of a thread: its commits, oldest first, the failures of its last run, and its rows."""
    usage, calls = stored_usage(runs), list(stored_calls(runs))
    shown = None if graph.redaction is None else [graph.redaction.commit(commit) for commit in commits]
    return count_stats(
        tuple(graph.nodes),
        commits,
        [FinalFailure(failure, (), parent_of(failure, commits)) for failure in failures],
        **counted_parts(graph.nodes, graph.topology.schema),
        items={},
        lm_calls=calls if calls or not usage else None,
        usage=usage,
        unknown=[*UNKNOWN, *unrecorded(usage, calls)],
        shown=shown,
    )
