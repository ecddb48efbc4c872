"""What a stored run recorded besides its commits: posts to live fields, the conflicts of its joins, and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.archive.stored_graph import StoredGraph
from dspyer.display.stats import FinalFailure, Stats, count_stats, parent_of
from dspyer.events import Commit, MergedConflict, Posted
from dspyer.failure import Failure
from dspyer.ids import full_id, path_of_id
from dspyer.log.execution_records import run_usage
from dspyer.log.history import CommitListing
from dspyer.log.reader import HistoryReader, RunRows
from dspyer.log.rows import PostRow, RowKind, UnreadablePatch, is_readable, run_label, sum_usage
from dspyer.log.time_travel import stored_calls, unrecorded
from dspyer.patch import update_size
from dspyer.record.drawn import Checked, Mapped
from dspyer.record_codec import encode

UNKNOWN = (
    "of a process that was killed, LM calls are known as far as it had written them",
    "of failures, those are counted that were committed or ended the last run",
)


class JoinConflict(NamedTuple):
    """A conflict, and the id of the commit of its join."""

    commit: str
    conflict: MergedConflict

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return encode(self)


def stored_posts(reader: HistoryReader, run: RunRows, graph: StoredGraph | None) -> list[Posted]:
    """The posts to the live fields of a run's own graph, in order; `execution` is the id of the commit of the node."""
    reducers = {} if graph is None else {field.name: field.reducer for field in graph.fields}
    found: dict[int, Posted] = {}
    for row, point in zip(run.rows, run.points, strict=True):
        if row.kind != RowKind.POST or not is_readable(row):
            continue
        post = PostRow.read(row, reader.fetch, reader.decode)
        if post.scope:
            continue
        update = post.patch[post.field]
        name, how = post.execution, reducers.get(post.field) or "replace"
        execution = full_id(run.labels.get(point.run, run_label(run.run)), name)
        size, seq = update_size(update), post.seq
        found[seq] = Posted(post.field, post.node, path_of_id(name), execution, seq, size, update, how, post.time)
    return [found[seq] for seq in sorted(found)]


def join_conflicts(listing: CommitListing, ids: frozenset[str]) -> list[JoinConflict]:
    """The conflicts of those of some commits that are joins, in canonical order."""
    return [
        JoinConflict(commit.id, conflict)
        for commit, index in zip(listing.commits, listing.log_indexes, strict=True)
        if commit.id in ids
        for conflict in listing.history.log[index].conflicts
    ]


def stored_stats(
    nodes: Sequence[str],
    checks: Mapping[str, Checked],
    maps: Mapping[str, Mapped],
    commits: Sequence[Commit],
    failures: Sequence[Failure],
    runs: Iterable[RunRows],
    begin: Mapping[str, Any] | None = None,
    shown: Sequence[Commit] | None = None,
) -> Stats:
    """The figures of the nodes of one or more stored runs.

    Args:
        nodes: the nodes.
        checks: the checks among them.
        maps: the maps among them.
        commits: the commits of the runs, oldest first.
        failures: those with which the last run ended.
        runs: the rows of the runs.
        begin: the state before the first commit; None for an empty one.
        shown: the commits as they may be shown, if that is not as they are.
    """
    rows = list(runs)
    usage = sum_usage(run_usage(filter(is_readable, run.rows)) for run in rows)
    calls = list(stored_calls(rows))
    unreadable = [commit.patch.error for commit in commits if isinstance(commit.patch, UnreadablePatch)]
    return count_stats(
        nodes,
        commits,
        [FinalFailure(failure, (), parent_of(failure, commits)) for failure in failures],
        checks=checks,
        maps=maps,
        items={},
        lm_calls=calls if calls or not usage else None,  # tokens without a call: the program has recorded none
        usage=usage,
        unknown=[*UNKNOWN, *unrecorded(usage, calls), *dict.fromkeys(unreadable)],
        begin=begin,
        shown=shown,
    )
