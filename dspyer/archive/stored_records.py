"""What a stored run recorded besides its commits: posts to live fields, the conflicts of its joins, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.archive.stored_graph import StoredGraph
from dspyer.display.stats import FinalFailure, Stats, count_stats, parent_of
from dspyer.events import Commit, LMCall, MergedConflict, Posted
from dspyer.failure import Failure
from dspyer.patch import update_size
from dspyer.persistence.history import CommitListing
from dspyer.persistence.lm_call_reader import unrecorded
from dspyer.persistence.reader import HistoryReader, RunRows
from dspyer.persistence.rows import PostHeader, RowKind, read_commit_content, run_label
from dspyer.scheduler.run_state import path_of_id

UNKNOWN = (
    "of a process that was killed, LM calls are known as far as it had written them",
    "of failures, those are counted that were committed or ended the run",
)


class StoredPost(NamedTuple):
    """A post to a live field.

    Attributes:
        post: the post. `execution` is the id of the commit of its node; `time` is 0 in rows of dspyer 0.5 or earlier.
        withdrawn: whether it was withdrawn: the attempt that made it ended without a commit.
    """

    post: Posted
    withdrawn: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: that of the post, and whether it was withdrawn."""
        return {**self.post.to_dict(), "withdrawn": self.withdrawn}


class JoinConflict(NamedTuple):
    """A conflict, and the id of the commit of its join."""

    commit: str
    conflict: MergedConflict

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"commit": self.commit, "conflict": self.conflict.to_dict()}


def stored_posts(reader: HistoryReader, run: RunRows, graph: StoredGraph | None) -> list[StoredPost]:
    """The posts to the live fields of a run's own graph, in order."""
    reducers = {} if graph is None else {field.name: field.reducer for field in graph.fields}
    found: dict[int, StoredPost] = {}
    for row, point in zip(run.rows, run.points, strict=True):
        if row.kind == RowKind.WITHDRAW:
            _, scope, _, _, withdrawn = row.header
            for seq in () if scope else withdrawn:
                if seq in found:
                    found[seq] = found[seq]._replace(withdrawn=True)
        elif row.kind == RowKind.POST and row.content is not None:
            header = PostHeader.parse(row.header)
            if header.scope:
                continue
            update = (read_commit_content(row.content, reader.fetch, reader.decode).patch or {})[header.field]
            name, how = header.execution, reducers.get(header.field) or "replace"
            execution = f"{run.labels.get(point.run, run_label(run.run))}/{name}"
            size, time = update_size(update), header.time or 0.0
            post = Posted(header.field, header.node, path_of_id(name), execution, header.seq, size, update, how, time)
            found[header.seq] = StoredPost(post, withdrawn=False)
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
    graph: StoredGraph,
    commits: Sequence[Commit],
    failures: Sequence[Failure],
    usage: Mapping[str, Mapping[str, Any]],
    begin: Mapping[str, Any],
    lm_calls: Sequence[LMCall],
) -> Stats:
    """The figures of a run, from its commits.

    `begin` is the state before the first one; the execution of each LM call is that of its visit. A run that has used
    tokens and has no calls has not recorded them.
    """
    return count_stats(
        graph.picture.topology.nodes,
        commits,
        [FinalFailure(failure, (), parent_of(failure, commits)) for failure in failures],
        checks=graph.checks,
        maps=graph.maps,
        items={},
        lm_calls=lm_calls if lm_calls or not usage else None,
        usage=usage,
        unknown=[*UNKNOWN, *unrecorded(usage, lm_calls)],
        begin=begin,
    )
