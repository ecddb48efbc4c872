"""`ReadSources`: the commits behind what a node and its routers have read, for `Run.sources`.

Of a view these are the commits that brought the parts that it showed, of any other value those behind it, as the index
of the log has them (`scheduler.writers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

from dspyer.graph.spec import GraphSpec
from dspyer.nodes.node import Node
from dspyer.nodes.router import Router
from dspyer.nodes.view_access import fields_of_then, kind_of_parts
from dspyer.runtime.session_views import Fields
from dspyer.scheduler.lineage import LogEntry, is_manual, sent_to
from dspyer.scheduler.writers import Writers
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentVector
from dspyer.views import ViewRead, select_parts

Found = dict[str, set[int]]
"""By field, the log indexes of the commits behind the value that was read."""


class Sources(NamedTuple):
    """What an execution has read: by field, the ids of the commits behind the value.

    Attributes:
        node: what its node has read.
        routers: what its routers have read, from the state after the node: the commit itself may be among the ids.
    """

    node: Mapping[str, tuple[str, ...]]
    routers: Mapping[str, tuple[str, ...]]


class ReadSources:
    """The sources of the commits of a run, computed when asked for. For any thread."""

    def __init__(
        self,
        graph: GraphSpec,
        fields: Fields,
        log: PersistentVector[LogEntry],
        view_reads: Iterable[ViewRead],
        writers: Writers,
    ) -> None:
        self._graph = graph
        self._schema: Schema = graph.topology.schema
        self._fields = fields
        self._log = log
        self._index_of = {entry.commit.id: at for at, entry in enumerate(log)}
        self._view_reads = tuple(view_reads)
        self._views: dict[tuple[str, int], list[ViewRead]] = {}
        for read in self._view_reads:
            self._views.setdefault((read.node, read.head), []).append(read)
        self._fixes = {check.fix: check for check in graph.checks.values() if check.fix is not None}
        self._posted: dict[str, list[tuple[int, int]]] | None = None
        self._writers = writers
        self._lock = RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadSources, (self._graph, self._fields, self._log, self._view_reads, self._writers)

    def of(self, commit: str) -> Sources:
        """What the execution that made a commit has read, given its id."""
        index = self._index_of[commit]
        with self._lock:
            return Sources(self._named(self._node(index)), self._named(self._routers(index)))

    def _named(self, found: Found) -> dict[str, tuple[str, ...]]:
        return {name: tuple([self._log[at].commit.id for at in sorted(found[name])]) for name in found}

    # --- what was read

    def _node(self, index: int) -> Found:
        """What the node of a commit has read; of a join, the values of its branches that it has decided about."""
        entry = self._log[index]
        if len(entry.parents) > 1:
            return {
                field: set().union(*[self._behind(field, parent) for parent in entry.parents])
                for field in entry.commit.patch
            }
        node = self._graph.nodes.get(entry.commit.node)
        if node is None or is_manual(entry.commit):
            return {}
        (head,) = entry.parents
        found = self._sent(index, node, head)
        whole = {field for _, field in node.whole_fields(self._log[head].state)}
        views = self._views.get((node.name, head), ())
        viewed = {read.view.field for read in views} - whole
        for field in _readable(node, self._log[head].state):
            if field not in found and field not in viewed:
                found[field] = self._behind(field, head)
        for read in views:
            if read.view.field in viewed and read.view.field not in found:
                found.setdefault(read.view.field, set())
            if read.view.field in viewed:
                found[read.view.field] |= self._shown(read)
                for name in fields_of_then(read.view, self._schema):
                    if name not in found and name in self._log[head].state:
                        found[name] = self._behind(name, head)
        self._add_live(found, entry, head)
        return found

    def _sent(self, index: int, node: Node, head: int) -> Found:
        """The values that a `Send` brought. A check, and the fix of one, get what the checked node has read."""
        entry = self._log[index]
        names = list(sent_to(self._log, entry.parents, entry.commit.branch))
        if not names:
            return {}
        check = self._graph.checks.get(node.name) or self._fixes.get(node.name)
        of = -1 if check is None else check.visit_at(self._log, head).of
        if check is None or of < 0:
            sender = head
            while is_manual(self._log[sender].commit):
                (sender,) = self._log[sender].parents
            return {name: {sender} for name in names}
        found = self._node(of)
        if node.name != check.fix:
            return {name: found[name] for name in names if name in found}
        for field in check.outputs.values():
            if field in self._log[head].state:
                found[field] = found.get(field, set()) | self._behind(field, head)
        found[check.into] = {head}
        return found

    def _routers(self, index: int) -> Found:
        """What the routers after a commit have read; none was called if a `Command` or an error edge led on."""
        entry, commit = self._log[index], self._log[index].commit
        found: Found = {}
        routers = [exit_ for exit_ in self._graph.exits.get(commit.node, ()) if isinstance(exit_, Router)]
        if not routers or commit.node in self._graph.checked or self._along_error_edge(entry):
            return found
        sent = sent_to(self._log, entry.parents, commit.branch) if entry.parents else FrozenDict()
        for router in routers:
            for field in _readable(router, entry.state, sent):
                if field not in sent:
                    found.setdefault(field, set()).update(self._behind(field, index))
                else:
                    found.setdefault(field, set()).update(self._node(index).get(field, entry.parents))
        return found

    def _along_error_edge(self, entry: LogEntry) -> bool:
        """Whether an error edge led on; a tool that reports its failure is followed by its routers."""
        node = self._graph.nodes.get(entry.commit.node)
        return entry.commit.failure is not None and node is not None and not node.reports_in

    def _add_live(self, found: Found, entry: LogEntry, head: int) -> None:
        """The live fields that the node followed, with the posts of siblings that it got."""
        if entry.commit.live is None or not entry.commit.live.reads:
            return
        if self._posted is None:
            self._posted = {}
            for at, other in enumerate(self._log):
                for field, seqs in other.commit.live.posts.items() if other.commit.live is not None else ():
                    if seqs:
                        self._posted.setdefault(field, []).append((min(seqs), at))
        for field, last in entry.commit.live.reads.items():
            behind = found.setdefault(field, self._behind(field, head))
            behind |= {
                at
                for seq, at in self._posted.get(field, ())
                if seq <= last and self._log[at].commit.id != entry.commit.id
            }

    def _shown(self, read: ViewRead) -> set[int]:
        """The commits whose parts a view showed; of a field without parts, all behind its value."""
        view, log = read.view, self._log
        found = self._fields.parts(log, view.field, read.head)
        if found is None:
            return self._behind(view.field, read.head)
        news = partial(self._fields.news, view.field, log, read.head, read.node)
        parts = select_parts(view, kind_of_parts(self._schema, view.field), found[1], read.node, news)
        return self._writers.of_parts(found[0], parts)

    # --- who wrote it

    def _behind(self, field: str, at: int) -> set[int]:
        """The commits behind the value of a field after the commit at a log index."""
        return self._writers.commits_behind(field, at, self._schema.reducer(field) is not None)


def _readable(reader: Node | Router, state: ImmutableState, sent: Iterable[str] = ()) -> list[str]:
    """The fields that a node or a router reads, of those that are set."""
    if reader.reads is None:
        return [*state, *(name for name in sent if name not in state)]
    return [name for name in dict.fromkeys(reader.reads.values()) if name in state or name in sent]
