"""What a check says of a correction that it accepted: `Node.repair_in`. `runtime.repairs` makes an example of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.nodes.field_names import FieldNames
from dspyer.scheduler.lineage import LogEntry, is_manual
from dspyer.values.frozen import FrozenDict


class CheckedCommit(NamedTuple):
    """A commit, as far as repairs are read from it.

    Attributes:
        id: its id, as the example names it.
        node: its author.
        route: where its branch went.
        patch: what it changed.
        sent: what the node that follows was sent.
        parent: the index of its parent; -1 for none.
        manual: whether no node made it (`t.update`).
    """

    id: str
    node: str
    route: tuple[str, ...]
    patch: Mapping[str, Any]
    sent: FrozenDict[str, Any] | None
    parent: int
    manual: bool

    @classmethod
    def of(cls, entry: LogEntry, prefix: str) -> CheckedCommit:
        """Return what repairs need of an entry of a log; `prefix` is what ids in its run begin with."""
        commit = entry.commit
        parent = entry.parents[0] if entry.parents else -1
        return cls(prefix + commit.id, commit.node, commit.route, commit.patch, entry.sent, parent, is_manual(commit))


class Repair(NamedTuple):
    """What was refused, and what was accepted in its place. Values are frozen.

    Attributes:
        inputs: what led to the outputs.
        accepted: the outputs that the check accepted.
        rejected: those that it refused, oldest first.
        problems: what it found in each of them.
        reads: the field of each input.
        writes: the field of each output.
    """

    inputs: Mapping[str, Any]
    accepted: Mapping[str, Any]
    rejected: Sequence[Mapping[str, Any]]
    problems: Sequence[Any]
    reads: FieldNames
    writes: FieldNames
