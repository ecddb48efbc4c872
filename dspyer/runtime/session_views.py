"""The past in views: the parts of each field at each commit, with their authors, and which are unseen.

A part is an item of a list, the value of a key, or an amount (see `scheduler.provenance`). `RunViews` serves the
nodes, and `TokenReads` counts afterwards what they have read. Both derive the parts from the log: during the run, only
the reads of views are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as made
from functools import partial
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from dspyer.errors import ThreadError
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.field_access import fields_of_then, kind_of_parts
from dspyer.nodes.node import Node
from dspyer.nodes.router import Router
from dspyer.patch import DELETE
from dspyer.scheduler.lineage import Log, LogEntry, sent_to
from dspyer.scheduler.provenance import (
    FieldIndex,
    FieldIndexes,
    FieldPart,
    FieldParts,
    IndexedField,
    PriorHistory,
    ThreadLog,
    UnseenParts,
    Writers,
    last_visits,
    unattributed_parts,
    unseen_commits,
    unseen_parts,
)
from dspyer.scheduler.schedule import Branch, run_value
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentVector
from dspyer.views import ViewRead, render, select_parts, select_plain_parts, tokens_of_parts

if TYPE_CHECKING:
    from dspyer.graph.spec import GraphSpec


EarlierCommits = Callable[[str], PriorHistory]
"""Loads the commits of the thread before a run, for a field. Called when a view first needs them."""


Changed: TypeAlias = tuple[str, Any, Any, FieldParts | None]
"""A field, its frozen values before and after (`DELETE` for none), and its new parts; None if it has no parts."""


class RunViews:
    """Computes the views of the nodes of a run, or of a node that is called without one.

    Args:
        graph: the graph.
        fields: the parts of its fields.
        log: the commits that the nodes may see.
        reads: gets the views that are read; None without a run, which has no limit of steps either.
    """

    def __init__(self, graph: GraphSpec, fields: Fields, log: Log, reads: list[ViewRead] | None) -> None:
        self._graph = graph
        self._fields = fields
        self._log = log
        self._reads = reads
        self.schema = fields.schema
        self.nodes = graph.nodes

    def index(self, field: str, branch: Branch) -> FieldIndex | None:
        """The parts of a field with their authors, in a branch; None if the field has no parts."""
        return self._fields.index(field, self._log, branch.head)

    def news(self, field: str, branch: Branch, reader: str) -> UnseenParts:
        """The parts of a field that a node has not seen; the field must have parts."""
        return self._fields.news(field, self._log, branch.head, reader)

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> Iterator[Changed]:
        """The changes of fields (None for all) since a node last ran in the lineage of a branch."""
        log = self._fields.log(self._log, "")
        unseen = unseen_commits(log, [branch.head], reader)
        touched = {name for log_index in unseen for name in log[log_index].commit.patch}
        visits = last_visits(log, unseen, [branch.head], reader)
        # After several last visits, in branches that were joined, or none, there is no state that the node has seen.
        base = log[visits[0]].state if len(visits) == 1 else ImmutableState()
        known = tuple(self.schema.fields) or tuple(branch.state)
        names = [*known, *sorted(touched - set(known))]
        for name in names:
            if name not in touched or (fields is not None and name not in fields):
                continue
            before, after = base.raw(name, DELETE), branch.state.raw(name, DELETE)
            of = self._fields.indexed(name)
            parts = None if of is None else FieldParts(of.reducer.kind, tuple(self.news(name, branch, reader).parts))
            if not same(before, after) if parts is None else _has_changed(parts, before, after):
                yield name, before, after, parts

    def permitted_fields(self, node: str, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """The fields that a node may read or write through `ctx`; None for all."""
        known = self.nodes.get(node)
        return None if known is None else known.permitted_fields(option)

    def record_read(self, read: ViewRead) -> None:
        """Notes that a view was read. May be called from any thread."""
        if self._reads is not None:
            self._reads.append(read)

    def warning(self, branch: Branch) -> str:
        """The text that warns a node of the limit on steps; "" if the limit is far."""
        warn_at, topology = self._graph.conversations.warn_at, self._graph.topology
        remaining = run_value("run.remaining", topology, branch)
        if self._reads is None or warn_at is None or not isinstance(remaining, int) or remaining > warn_at:
            return ""
        left = "No step is" if not remaining else "1 step is" if remaining == 1 else f"{remaining} steps are"
        return f"{left} left of {topology.max_steps}: come to an end."


@dataclass(slots=True, eq=False)
class Fields:
    """The parts of each field of a run at each of its commits, computed when asked for.

    Args:
        schema: the schema of the state.
        whole_values: whether the first commit of the run holds whole values, and not updates.
        prefix: what the global ids of its commits begin with.
        earlier: loads the commits of the thread before the run; None for none.
        id_prefixes: what the ids of the commits of earlier processes begin with (see `RunStart`).
    """

    schema: Schema
    whole_values: bool
    prefix: str = ""
    earlier: EarlierCommits | None = None
    id_prefixes: tuple[tuple[int, str], ...] = ()
    _indexes: dict[str, FieldIndexes] = made(init=False, default_factory=dict)
    _lock: Any = made(init=False, default_factory=Lock)  # nodes that run at once extend one index

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process is without the earlier runs of a thread, which are in its store.
        earlier = self.earlier and _not_copied
        return Fields, (self.schema, self.whole_values, self.prefix, earlier, self.id_prefixes)

    def indexed(self, field: str) -> IndexedField | None:
        """The rule by which the parts of a field follow from its updates; None if it has no parts."""
        return IndexedField.of(self.schema.fields.get(field), self.whole_values, self.prefix, self.id_prefixes)

    def log(self, log: Log, field: str) -> Log:
        """The log of a run after the commits of earlier runs, as far as they concern `field` ("" for none)."""
        earlier = self.earlier
        return log if earlier is None else ThreadLog(log, lambda: earlier(field))

    def index(self, field: str, log: Log, log_index: int) -> FieldIndex | None:
        """The parts of a field after the commit at `log_index` of a log; None if it has none. For any thread."""
        found = self.parts(log, field, log_index)
        return None if found is None else found[1]

    def parts(self, log: Log, field: str, log_index: int) -> tuple[IndexedField, FieldIndex] | None:
        """The index of a field with the rule by which it was made."""
        with self._lock:
            found = self._indexes.get(field)
            if found is None:
                of, earlier = self.indexed(field), self.earlier
                if of is None:
                    return None
                found = self._indexes[field] = FieldIndexes(of)
                before = None if earlier is None else earlier(field).field_index
                if before is not None:
                    found.begin(-1, before)
            return found.of, found.at(self.log(log, field), log_index)

    def news(self, field: str, log: Log, log_index: int, reader: str) -> UnseenParts:
        """The parts of a field that node `reader` has not seen, in a branch whose last commit is at `log_index`."""
        found, spanning = self.parts(log, field, log_index), self.log(log, field)
        assert found is not None
        return unseen_parts(found[1], spanning, unseen_commits(spanning, [log_index], reader), found[0])


def _not_copied(field: str) -> PriorHistory:
    raise ThreadError(
        f"a copy of a run does not have what earlier runs of the thread wrote to {field!r}: call run.view_tokens() in "
        "the process that ran it"
    )


Count = Callable[[str], int]

TokenRead = tuple[str, str, str | None, int, int]
"""One input of a node at one visit: node, its name for the input, view (None for the whole field), tokens sent, tokens
of the whole field."""


class TokenReads:
    """The tokens of what the nodes of a run have read, computed from its log: each part and each whole value once.

    These are known by identity, and kept: an id may be used again once its object is gone.
    """

    def __init__(self, fields: Fields, log: PersistentVector[LogEntry], count: Count) -> None:
        self._fields = fields
        self._log = log
        self._count = count
        self._known: dict[int, tuple[Any, int]] = {}

    def of_views(self, reads: Iterable[ViewRead]) -> Iterator[TokenRead]:
        """The reads of views."""
        for node, name, view, log_index in reads:
            index = self._fields.index(view.field, self._log, log_index)
            kind = kind_of_parts(self._fields.schema, view.field)
            value = self._log[log_index].state.raw(view.field, DELETE)
            if index is None:
                kind, parts = select_plain_parts(view, value, kind)
            else:
                parts = select_parts(
                    view, kind, index, node, partial(self._fields.news, view.field, self._log, log_index, node)
                )
            if view.last_step == "then":
                field_of = partial(_field, self._log[log_index].state)
                sent = self._of_value(_frozen_or_text(render(view, kind, parts, "entries", field_of)))
            else:
                sent = self._of_parts(kind, parts)
            yield node, name, repr(view), sent, self._whole(view.field, log_index, value)

    def of_plain_inputs(self, nodes: Mapping[str, Node], first: int) -> Iterator[TokenRead]:
        """The reads of whole fields, by the nodes of the commits from `first` on."""
        for log_index in range(first, len(self._log)):
            entry = self._log[log_index]
            node = nodes.get(entry.commit.node)
            if node is not None and entry.parents:
                before = entry.parents[0]
                state = self._log[before].state
                for name, field in node.whole_fields(state):
                    size = self._whole(field, before, state.raw(field))
                    yield node.name, name, None, size, size

    def _whole(self, field: str, log_index: int, value: Any) -> int:
        """The tokens of a whole field."""
        of = self._fields.indexed(field)
        if of is None or of.reducer.kind == "amount":
            return self._of_value(value)
        index = self._fields.index(field, self._log, log_index)
        return 0 if index is None else self._of_parts(of.reducer.kind, index.parts)

    def _of_parts(self, kind: str, parts: Iterable[FieldPart]) -> int:
        # Each part once: a list of which a loop reads the whole at each visit would be counted again each time.
        if kind == "amount":  # one number, the sum of the parts
            return tokens_of_parts(kind, tuple(parts), self._count)
        known = self._known
        found = 0
        for part in parts:
            if id(part) not in known:
                known[id(part)] = part, tokens_of_parts(kind, (part,), self._count)
            found += known[id(part)][1]
        return found

    def _of_value(self, value: Any) -> int:
        if id(value) not in self._known:
            self._known[id(value)] = value, self._of_parts(*unattributed_parts(value))
        return self._known[id(value)][1]


def _field(state: ImmutableState, name: str) -> Any:
    return state.raw(name, DELETE)


def _frozen_or_text(result: object) -> Any:
    """The result of a `.then` function in a form whose size can be counted."""
    try:
        return freeze(result)
    except (TypeError, ValueError):  # the function may return what no state can hold
        return repr(result)


def _has_changed(parts: FieldParts, before: Any, after: Any) -> bool:
    """Return whether a field with parts has changed: there are unseen parts, or all parts were removed."""
    if parts.kind == "amount":
        return any(part.value for part in parts.parts)
    return bool(parts.parts) or (before is not DELETE and bool(before) and not after)


# --- the commits behind what a node and its routers have read, for `Run.sources`.
#
# Of a view these are the commits that brought the parts that it showed, of any other value those behind it, as the
# index of the log has them (`scheduler.writers`).


Found = dict[str, set[int]]
"""By field, the log indexes of the commits behind the value that was read."""


class Sources(NamedTuple):
    """The reads of an execution: by field, the ids of the commits behind the value.

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
    ) -> None:
        self._graph = graph
        self._schema: Schema = graph.topology.schema
        self._fields = fields
        self._log = log
        self._index_of = {entry.commit.id: at for at, entry in enumerate(log)}
        self._view_reads = tuple(view_reads)
        self._views: dict[tuple[str, int], list[ViewRead]] = {}
        for read in self._view_reads:  # by head: a node in a loop has read another view at each visit
            self._views.setdefault((read.node, read.head), []).append(read)
        self._fixes = {check.fix: check for check in graph.checks.values() if check.fix is not None}
        self._posted: dict[str, list[tuple[int, int]]] | None = None
        self.writers = Writers(log, parts=partial(fields.parts, log))
        self._lock = RLock()  # one index of writers, which each look extends, for all threads that ask the run

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadSources, (self._graph, self._fields, self._log, self._view_reads)

    def of(self, commit: str) -> Sources:
        """The reads of the execution that made a commit, given its id."""
        index = self._index_of[commit]
        with self._lock:
            return Sources(self._named(self._node(index)), self._named(self._routers(index)))

    def behind(self, field: str, commit: str) -> tuple[str, ...]:
        """The ids of the commits behind the value of a field after a commit, given its id."""
        with self._lock:
            return self._named({field: self._behind(field, self._index_of[commit])})[field]

    def _named(self, found: Found) -> dict[str, tuple[str, ...]]:
        return {name: tuple([self._log[at].commit.id for at in sorted(found[name])]) for name in found}

    # --- what was read

    def _node(self, index: int) -> Found:
        """The reads of the node of a commit; of a join, the values of its branches that it has decided about."""
        entry = self._log[index]
        if len(entry.parents) > 1:
            return {
                field: set().union(*[self._behind(field, parent) for parent in entry.parents])
                for field in entry.commit.patch
            }
        node = self._graph.nodes.get(entry.commit.node)
        if node is None or entry.commit.is_manual():  # of START, or of a person: nothing was read
            return {}
        (head,) = entry.parents
        # What a `Send` brought stands before the state: the node has read that value, and not the one of the field.
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
            # Edits stand between, unless one has decided anew.
            while self._log[sender].commit.is_manual() and not self._log[sender].commit.route:
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
        """The reads of the routers after a commit; none was called if a `Command` or an error edge led on."""
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
        """Return whether an error edge led on; a tool that reports its failure is followed by its routers."""
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
        return self.writers.of_parts(found[0], parts)

    # --- who wrote it

    def _behind(self, field: str, at: int) -> set[int]:
        """The commits behind the value of a field after the commit at a log index."""
        return self.writers.commits_behind(field, at, self._schema.reducer(field) is not None)


def _readable(reader: Node | Router, state: ImmutableState, sent: Iterable[str] = ()) -> list[str]:
    """The fields that a node or a router reads, of those that are set."""
    if reader.reads is None:
        return [*state, *(name for name in sent if name not in state)]
    return [name for name in dict.fromkeys(reader.reads.values()) if name in state or name in sent]
