"""The values of a run: which commit wrote each of them, and from which other values it follows.

A value is what a commit left in a field. It follows from what its node has read (`run.sources`), and from the decisions
that led its branch there. A decision is what a router has chosen; it follows from what the router has read, from the
state after its node.

- A value that was folded into an earlier one (a reducer, a dict that is written key by key) builds on that one.
- Where branches join that have all written a field, the joined value builds on theirs. If it was folded, theirs are
  only parts of it (`partial`), which a metric of the whole cannot judge.
- A decision counts only for nodes that would not have run in any case: those in the arms of a fork, and not the one
  behind all arms. This is the control dependence of compilers (Ferrante, Ottenstein, Warren, "The program dependence
  graph and its use in optimization", 1987).
- The inputs of the run are given: no value stands for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dspyer.errors import CheckError
from dspyer.events import Commit
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.node import Node
from dspyer.nodes.router import Router
from dspyer.patch import resets
from dspyer.scheduler.lineage import LogEntry, is_manual, merge_base, sent_to
from dspyer.scheduler.topology import END, START
from dspyer.values.frozen import FrozenDict, thaw

if TYPE_CHECKING:
    from dspyer.runtime.run import Run

NO_FIELD: Final = ""
"""The field of a decision, and of a failure that no field holds."""


class FoldedRead(NamedTuple):
    """A field with a reducer that was read: as a whole, or as parts of it that a view showed or siblings posted.

    Attributes:
        whole: its value; None if only siblings that ran at the same time had written it.
        parts: the ids of the commits that brought what was read.
    """

    field: str
    whole: WrittenValue | None
    parts: tuple[str, ...]


class WrittenValue:
    """What a commit left in a field, or a decision.

    Attributes:
        commit: the commit.
        field: the field; `NO_FIELD` for a decision, and for a failure that no field holds.
        authors: who may be responsible for it: the node, or a router, and what condensed the value.
        follows: the values and decisions from which it follows.
        folded: what was read of fields with reducers.
        builds_on: the values into which it was folded.
        problems: what a check has found in it; empty if none has refused it.
        failed: whether its node failed, and an error edge led on.
        passes_on: whether what follows from it is judged by what it follows from itself: a check only says what is
            wrong, and what it has refused is known to be wrong by the one that corrects it.
        partial: whether a join folded it into a value of several branches.
    """

    __slots__ = (
        "authors",
        "builds_on",
        "commit",
        "failed",
        "field",
        "folded",
        "follows",
        "partial",
        "passes_on",
        "problems",
    )

    def __init__(
        self,
        commit: Commit,
        field: str,
        authors: tuple[str, ...],
        follows: Iterable[WrittenValue],
        folded: Sequence[FoldedRead] = (),
        builds_on: tuple[WrittenValue, ...] = (),
    ) -> None:
        self.commit = commit
        self.field = field
        self.authors = authors
        self.follows = tuple(dict.fromkeys(follows))
        self.folded = tuple(folded)
        self.builds_on = builds_on
        self.problems: tuple[str, ...] = ()
        self.failed = False
        self.passes_on = False
        self.partial = False

    def __repr__(self) -> str:
        return f"<{self.field or 'decision'} by {', '.join(self.authors) or self.commit.node} in {self.commit.id}>"


Current = Mapping[str, WrittenValue]
"""The value of each field after a commit; none for inputs of the run."""

Decisions = Mapping[str, tuple[WrittenValue, ...]]
"""The decisions that led a branch to where it is, by the node that they followed."""


class _Reads(NamedTuple):
    follows: list[WrittenValue]
    folded: list[FoldedRead]


class WrittenValues:
    """The values of a run and its decisions, in the canonical order of its commits.

    Attributes:
        values: the values and decisions; each follows from earlier ones, except that siblings may have read each other.
        written: the values by commit id and field.
        final: the value of each field in the end.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._graph: GraphSpec = run._graph
        self._entries: Sequence[LogEntry] = run._entries
        self.values: list[WrittenValue] = []
        self.written: dict[tuple[str, str], WrittenValue] = {}
        self._current: list[Current] = []
        self._led_by: list[Decisions] = []  # the decisions that lead on from each commit
        self._decided: dict[str, tuple[WrittenValue, ...]] = {}  # the decisions of each commit
        self._rejections = _rejections(self._entries, self._graph.rejecting)
        for entry in self._entries:
            self._add(entry)
        self.final: Current = self._current[-1] if self._current else {}

    def _add(self, entry: LogEntry) -> None:
        """The values and decisions of one commit."""
        if len(entry.parents) > 1:
            self._join(entry)
        elif entry.parents and is_manual(entry.commit):  # given, as inputs are
            (parent,) = entry.parents
            kept = {field: value for field, value in self._current[parent].items() if field not in entry.commit.patch}
            self._current.append(kept)
            self._led_by.append(self._led_by[parent])
        else:
            self._commit(entry)

    def _put(self, value: WrittenValue, after: dict[str, WrittenValue]) -> WrittenValue:
        value.problems = self._rejections.get(value.commit.id, ())
        value.passes_on = value.passes_on or bool(value.problems)
        self.values.append(value)
        self.written[value.commit.id, value.field] = value
        if value.field != NO_FIELD:
            after[value.field] = value
        return value

    def _decide(self, decision: WrittenValue) -> WrittenValue:
        self.values.append(decision)
        return decision

    def _leading(self, entry: LogEntry) -> Decisions:
        """The decisions without which a commit would not have been made."""
        node = entry.commit.node.removeprefix("join:") if len(entry.parents) > 1 else entry.commit.node
        deciding = avoiding(self._graph, node)
        found: dict[str, tuple[WrittenValue, ...]] = {}
        for parent in entry.parents:
            for source, decisions in self._led_by[parent].items():
                if source in deciding:
                    found[source] = tuple(dict.fromkeys((*found.get(source, ()), *decisions)))
        return found

    # --- a commit of a node

    def _commit(self, entry: LogEntry) -> None:
        commit, graph = entry.commit, self._graph
        node, leading = graph.nodes.get(commit.node), self._leading(entry)
        before: Current = self._current[entry.parents[0]] if entry.parents else {}
        after = dict(before)
        decisions = [decision for decided in leading.values() for decision in decided]
        sources = self._run._sources_apart(commit.id)
        sent = set(sent_to(self._entries, entry.parents, commit.branch)) if entry.parents else set[str]()
        by_id = _is_part_of_check(graph, commit.node)  # what a check sends was read by the node that it checks
        reads = self._reads(sources.node, before, sent, by_id)
        reads.follows.extend(decisions)
        if node is not None and commit.failure is not None and _along_error_edge(graph, commit):
            failure = WrittenValue(commit, next(iter(commit.patch), NO_FIELD), (node.name,), *reads)
            failure.failed = True
            decided: list[WrittenValue] = [self._put(failure, after)]
        else:
            routers = _routers(graph, commit.node)
            if node is not None:
                self._node_values(entry, node, routers, before, after, reads)
            decided = []
            if node is not None and node.checking is not None:
                decided.append(self._decide(_passing(WrittenValue(commit, NO_FIELD, (), *reads))))
            elif node is not None and node.goto:  # a `Command` may have decided
                decided.append(self._decide(WrittenValue(commit, NO_FIELD, (node.name,), *reads)))
            for router in routers:
                decided += self._route(commit, router, sources.routers, after, sent, decisions)
        self._current.append(after)
        self._decided[commit.id] = tuple(decided)
        self._led_by.append({**leading, commit.node: tuple(decided)} if decided else leading)

    def _node_values(
        self,
        entry: LogEntry,
        node: Node,
        routers: Sequence[Router],
        before: Current,
        after: dict[str, WrittenValue],
        reads: _Reads,
    ) -> None:
        """The values that the node itself has written."""
        commit = entry.commit
        own = None if node.writes is None else set(node.writes.values())
        routed = {field for router in routers for field in router.writes.values()}
        for field, update in commit.patch.items():
            if field in routed and (own is None or field not in own):
                continue
            condenser = self._graph.condensers.get(node.name, {}).get(field)
            authors = (node.name,) if condenser is None else (node.name, condenser.name)
            value = WrittenValue(commit, field, authors, *reads, self._built_on(field, update, before))
            value.passes_on = node.checking is not None
            self._put(value, after)
        for field in self._restated(commit, node, before):
            kept = () if field in node.always_writes else (before[field],)
            self._put(WrittenValue(commit, field, (node.name,), *reads, kept), after)

    def _restated(self, commit: Commit, node: Node, before: Current) -> list[str]:
        """The fields that a node has left as they were, or has written with the value that they had.

        They are in no patch. A module has written them; what a function did is unknown, so that the value follows from
        the earlier one and from what the function has read, as what it decided not to write does.
        """
        if node.checking is not None or node.writes is None:
            return []
        reducer = self._graph.topology.schema.reducer
        fields = [field for field in node.writes.values() if field not in commit.patch and reducer(field) is None]
        return [field for field in fields if field in node.always_writes or field in before]

    def _built_on(self, field: str, update: Any, before: Current) -> tuple[WrittenValue, ...]:
        """The value into which an update was folded."""
        earlier = before.get(field)
        if earlier is None:
            return ()
        if self._graph.topology.schema.reducer(field) is not None:
            return () if resets(update) else (earlier,)
        return (earlier,) if isinstance(update, Mapping) else ()

    def _route(
        self,
        commit: Commit,
        router: Router,
        sources: Mapping[str, tuple[str, ...]],
        after: dict[str, WrittenValue],
        sent: set[str],
        decisions: Sequence[WrittenValue],
    ) -> list[WrittenValue]:
        """What a router has decided: the values that it wrote, or else a decision without a field."""
        fields = sources if router.reads is None else [field for field in router.reads.values() if field in sources]
        reads = self._reads({field: sources[field] for field in fields}, after, sent, by_id=False)
        reads.follows.extend(decisions)
        authors = () if router.module_name is None else (router.module_name,)
        written = [
            WrittenValue(commit, field, authors, *reads, self._built_on(field, commit.patch.get(field), after))
            for field in router.writes.values()
            if field in commit.patch or self._graph.topology.schema.reducer(field) is None
        ]
        if not written:
            return [self._decide(WrittenValue(commit, NO_FIELD, authors, *reads))]
        return [self._put(value, after) for value in written]

    def _reads(self, sources: Mapping[str, tuple[str, ...]], current: Current, sent: set[str], by_id: bool) -> _Reads:
        """The values that were read, given the commits behind them."""
        found = _Reads([], [])
        for field, commits in sources.items():
            if by_id:
                for commit in commits:
                    value = self.written.get((commit, field))
                    found.follows.extend(self._decided.get(commit, ()) if value is None else (value,))
            elif field in sent:  # what decided to send it has also made it
                found.follows.extend(decision for commit in commits for decision in self._decided.get(commit, ()))
            elif self._graph.topology.schema.reducer(field) is not None:
                found.folded.append(FoldedRead(field, current.get(field), commits))
            elif field in current:
                found.follows.append(current[field])
        return found

    # --- joins

    def _join(self, entry: LogEntry) -> None:
        """The values after a join: of each field, that of the branch that changed it, or a joined one."""
        commit, entries = entry.commit, self._entries
        index = len(self._current)
        base = merge_base(entries, entry.parents)[0]
        branches, before = [self._current[parent] for parent in entry.parents], self._current[base]
        leading = self._leading(entry)
        after: dict[str, WrittenValue] = {}
        joined: list[WrittenValue] = []
        for field in dict.fromkeys([field for branch in branches for field in branch]):
            changed = list(dict.fromkeys([branch[field] for branch in branches if field in branch]))
            changed = [value for value in changed if value is not before.get(field)] or changed
            winner = entry.winners.get((field,))
            won = None if winner is None or winner == index else self.written.get((entries[winner].commit.id, field))
            if won is not None or (len(changed) == 1 and winner is None):
                after[field] = won or changed[0]
                continue
            joined.append(WrittenValue(commit, field, (commit.node,), (), (), tuple(changed)))
            if self._graph.topology.schema.reducer(field) is not None or isinstance(entry.state.raw(field), FrozenDict):
                _mark_partial(changed, before.get(field))
        for value in joined:
            self._put(value, after)
        self._current.append(after)
        self._led_by.append(leading)


def _passing(decision: WrittenValue) -> WrittenValue:
    decision.passes_on = True
    return decision


def _mark_partial(changed: Iterable[WrittenValue], base: WrittenValue | None) -> None:
    """Marks the values that branches had folded since they parted."""
    stack = list(changed)
    while stack:
        value = stack.pop()
        if value is not base and not value.partial:
            value.partial = True
            stack.extend(value.builds_on)


def _rejections(entries: Sequence[LogEntry], rejecting: Mapping[str, Node]) -> dict[str, tuple[str, ...]]:
    """The problems that checks have found, by the commit whose output they refused."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        check, failure = rejecting.get(entry.commit.node), entry.commit.failure
        if check is None or check.checking is None or not entry.parents:
            continue
        if failure is not None and failure.type == CheckError.__name__:
            problems: tuple[str, ...] = (failure.message,)
        elif check.rejects(entry.commit.route):
            problems = tuple(thaw(entry.state.raw(check.checking.into)))
        else:
            continue
        found |= dict.fromkeys(check.output_before(entries, entry.parents[0]), problems)
    return found


# --- facts of the graph


def _is_part_of_check(graph: GraphSpec, name: str) -> bool:
    """Whether a node is a check or a fix: what they are sent is not made by the one that sends it."""
    check = graph.checked.get(name)
    return name in graph.checks or (check is not None and check.fix == name)


def _along_error_edge(graph: GraphSpec, commit: Commit) -> bool:
    """Whether a commit with a failure went along an error edge; a tool that reports one to its model goes on."""
    intos = {edge.into for edge in graph.error_edges.get(commit.node, ())}
    return bool(intos) and intos.issuperset(commit.patch)


def _routers(graph: GraphSpec, name: str) -> list[Router]:
    if name in graph.checked:  # its check takes the edges
        return []
    return [exit_ for exit_ in graph.exits.get(name, ()) if isinstance(exit_, Router)]


@lru_cache(maxsize=1024)
def avoiding(graph: GraphSpec, node: str) -> frozenset[str]:
    """The nodes that have a choice which leads past `node`: what they decide is a reason why it runs or not."""
    avoids: set[str] = {END}  # from here a branch may end without `node`
    names = (START, *graph.nodes)
    while True:
        more = {name for name in names if name != node and name not in avoids and _leads_past(graph, name, avoids)}
        if not more:
            break
        avoids |= more
    return frozenset(name for name in names if _leads_past(graph, name, avoids))


def _leads_past(graph: GraphSpec, name: str, avoids: set[str]) -> bool:
    """Whether one of the ways on from a node leads only to nodes in `avoids`."""
    exits = graph.exits.get(name, ())
    edges = [exit_ for exit_ in exits if isinstance(exit_, str)]
    node = graph.nodes.get(name)
    if node is not None and not avoids.isdisjoint(node.goto):
        return True
    if not avoids.isdisjoint([edge.target for edge in graph.error_edges.get(name, ())]):
        return True
    routers = [exit_ for exit_ in exits if isinstance(exit_, Router)]
    return bool(exits) and avoids.issuperset(edges) and not any(avoids.isdisjoint(way.targets) for way in routers)
