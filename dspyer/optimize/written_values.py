"""The values of a run: which commit wrote each of them, and from which other values it follows.

A value is what a commit left in a field. It follows from what its node has read (`run.sources`), and from the decisions
that led its branch there. A decision is what a router has chosen; it follows from what the router has read, from the
state after its node.

- A value that was folded into an earlier one (a reducer, a dict that is written key by key) builds on that one.
- Where branches join that have all written a field, the joined value builds on theirs. If it was folded, theirs are
  only parts of it (`unjudged`), which a metric of the whole cannot judge.
- A decision counts only for nodes that would not have run in any case: those in the arms of a fork, and not the one
  behind all arms. This is the control dependence of compilers (Ferrante, Ottenstein, Warren, "The program dependence
  graph and its use in optimization", 1987).
- The inputs of the run are given: no value stands for them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, SupportsFloat

import dspy
from pydantic_core import to_jsonable_python

from dspyer import END, START, Run
from dspyer.errors import CheckError, brief, list_names, noting, suggestion, with_article
from dspyer.events import Commit
from dspyer.extend import FrozenDict, LogEntry, Node, is_async, read_signature, thaw
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.check import FinderNode
from dspyer.nodes.router import ModuleRouter, Router
from dspyer.patch import resets
from dspyer.scheduler.lineage import merge_base, sent_to

NO_FIELD: Final = ""
"""The field of a decision, and of a failure that no field holds."""


class FieldRead(NamedTuple):
    """A field that was read.

    Attributes:
        field: its name.
        value: its value; None for an input of the run, and if only siblings at the same time had written it.
        parts: of a view, and of a live field, the ids of the commits that brought what was read: it may be a part of
            the value, or posts of siblings that are not in it. None if the value was read as a whole.
        kept_by: the decisions that have led past nodes which may write the field: they left the value as it is.
    """

    field: str
    value: WrittenValue | None
    parts: tuple[str, ...] | None = None
    kept_by: tuple[WrittenValue, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class WrittenValue:
    """A value that a commit left in a field, or a decision.

    Attributes:
        commit: the commit.
        field: the field; `NO_FIELD` for a decision, and for a failure that no field holds.
        authors: who may be responsible for it: the node, or a router, and what condensed the value; of a value that a
            join folded, those of its parts; of one that a merge policy made, the join.
        follows: the decisions from which it follows, and values that were sent within a check.
        reads: the fields that were read for it.
        beside: of a decision, the values that were written with it, such as a label: by them it is judged, if their
            metrics can tell.
        builds_on: the values into which it was folded.
        problems: what a check has found in it; empty if none has refused it.
        failed: whether its node failed, and an error edge led on.
        passes_on: whether what follows from it is judged by what it follows from itself: a check only says what is
            wrong, and what it has refused is known to be wrong by the one that corrects it.
        unjudged: whether no metric judges it: a join has folded it into a value of several branches, or will in a run
            that is not over, or it hands on what a check has refused.
    """

    commit: Commit
    field: str
    authors: tuple[str, ...]
    follows: Sequence[WrittenValue]
    reads: Sequence[FieldRead] = ()
    builds_on: tuple[WrittenValue, ...] = ()
    beside: tuple[WrittenValue, ...] = ()
    problems: tuple[str, ...] = ()
    failed: bool = False
    passes_on: bool = False
    unjudged: bool = False

    def __post_init__(self) -> None:
        self.follows, self.reads = tuple(dict.fromkeys(self.follows)), tuple(self.reads)

    def __repr__(self) -> str:
        return f"<{self.field or 'decision'} by {', '.join(self.authors) or self.commit.node} in {self.commit.id}>"


Decisions = Mapping[str, tuple[WrittenValue, ...]]
"""The decisions that led a branch to where it is, by the node that they followed."""


class _Position(NamedTuple):
    """The position of a branch after a commit.

    Attributes:
        current: the value of each field.
        led_by: the decisions without which it would not be here.
        kept_by: by field, the decisions that have led past nodes which may write it, since it was last written.
    """

    current: dict[str, WrittenValue]
    led_by: Decisions
    kept_by: dict[str, Decisions]


class _Reads(NamedTuple):
    follows: list[WrittenValue]
    fields: list[FieldRead]


class WrittenValues:
    """The values of a run and its decisions, in the canonical order of its commits.

    Attributes:
        values: the values and decisions; each follows from earlier ones, except that siblings may have read each other.
        written: the values by commit id and field.
        final: the value of each field in the end.
    """

    def __init__(self, run: Run) -> None:
        internals = run.internals
        self._graph = internals.graph
        self._entries = internals.entries
        self._sources = internals.sources
        self.values: list[WrittenValue] = []
        self.written: dict[tuple[str, str], WrittenValue] = {}
        self._decided: dict[str, tuple[WrittenValue, ...]] = {}  # the decisions of each commit
        self._viewed = {(read.node, read.view.field) for read in internals.view_reads}
        self._rejections, self._handing_on = _rejections(self._entries, self._graph.rejecting)
        self._positions: list[_Position] = []
        for entry in self._entries:
            self._positions.append(self._after(entry))
        self.final = self._positions[-1].current if self._positions else {}  # of a run that failed at `START`
        if run.status != "completed":
            self._mark_unjoined()

    def _after(self, entry: LogEntry) -> _Position:
        """Adds the values and decisions of one commit."""
        if len(entry.parents) > 1:
            return self._join(entry)
        if entry.parents and entry.commit.is_manual():  # given, as inputs are
            before = self._positions[entry.parents[0]]
            current = {field: value for field, value in before.current.items() if field not in entry.commit.patch}
            return before._replace(current=current)
        return self._commit(entry)

    def _put(self, value: WrittenValue, position: _Position) -> WrittenValue:
        value.problems = self._rejections.get(value.commit.id, ())
        value.unjudged = value.commit.id in self._handing_on
        value.passes_on = value.passes_on or bool(value.problems) or value.unjudged
        self.values.append(value)
        self.written[value.commit.id, value.field] = value
        if value.field != NO_FIELD:
            position.current[value.field] = value
            position.kept_by.pop(value.field, None)
        return value

    def _decide(self, decision: WrittenValue, beside: Iterable[WrittenValue] = ()) -> WrittenValue:
        decision.beside = tuple(beside)
        self.values.append(decision)
        return decision

    def _arriving(self, entry: LogEntry) -> tuple[Decisions, dict[str, Decisions]]:
        """The decisions without which a commit would not have been made, and those that left fields as they are."""
        graph = self._graph
        node = entry.commit.node.removeprefix("join:") if len(entry.parents) > 1 else entry.commit.node
        deciding = avoiding(graph, node)
        led_by: dict[str, tuple[WrittenValue, ...]] = {}
        kept_by: dict[str, Decisions] = {}
        for parent in entry.parents:
            position = self._positions[parent]
            for field, decisions in position.kept_by.items():
                kept_by[field] = {**kept_by.get(field, {}), **decisions}
            for source, decided in position.led_by.items():
                if source in deciding:
                    led_by[source] = tuple(dict.fromkeys((*led_by.get(source, ()), *decided)))
                else:  # the ways meet here
                    for field in written_between(graph, source, node):
                        kept_by[field] = {**kept_by.get(field, {}), source: decided}
        return led_by, kept_by

    # --- a commit of a node

    def _commit(self, entry: LogEntry) -> _Position:
        commit, graph = entry.commit, self._graph
        node = graph.nodes.get(commit.node)
        led_by, kept_by = self._arriving(entry)
        before = self._positions[entry.parents[0]].current if entry.parents else {}
        position = _Position(dict(before), led_by, kept_by)
        decisions = [decision for decided in led_by.values() for decision in decided]
        sources = self._sources(commit.id)
        of_checked = self._of_checked(entry)
        sent = set[str]() if of_checked else self._sent_to(entry)
        reads = self._reads(sources.node, position, sent, commit.node, of_checked)
        reads.follows.extend(decisions)
        if node is not None and commit.failure is not None and _along_error_edge(graph, commit):
            failure = WrittenValue(commit, next(iter(commit.patch), NO_FIELD), (node.name,), *reads)
            failure.failed = True
            decided = [self._put(failure, position)]
            for field in (node.writes or {}).values():
                kept_by[field] = {**kept_by.get(field, {}), node.name: (failure,)}
        else:
            routers = _routers(graph, commit.node)
            written = [] if node is None else self._node_values(commit, node, routers, position, reads)
            decided = []
            if commit.node in graph.rejecting:
                decided.append(self._decide(WrittenValue(commit, NO_FIELD, (), *reads, passes_on=True)))
            elif node is not None and node.goto:  # a `Command` may have decided
                decided.append(self._decide(WrittenValue(commit, NO_FIELD, (node.name,), *reads), written))
            if node is not None and node.goto and not sources.routers:  # it did, in the place of its routers
                routers = []
            for router in routers:
                decided.append(self._route(commit, router, sources.routers, position, sent, decisions))
        self._decided[commit.id] = tuple(decided)
        return position._replace(led_by={**led_by, commit.node: tuple(decided)}) if decided else position

    def _node_values(
        self, commit: Commit, node: Node, routers: Sequence[Router], position: _Position, reads: _Reads
    ) -> list[WrittenValue]:
        """The values that the node itself has written."""
        found: list[WrittenValue] = []
        own = None if node.writes is None else set(node.writes.values())
        routed = {field for router in routers for field in router.writes.values()}
        for field in commit.patch:
            if field in routed and (own is None or field not in own):
                continue
            condenser = self._graph.condensers.get(node.name, {}).get(field)
            authors = (node.name,) if condenser is None else (node.name, condenser.name)
            value = WrittenValue(commit, field, authors, *reads, self._built_on(field, commit, position.current))
            value.passes_on = node.name in self._graph.rejecting
            found.append(self._put(value, position))
        for field in self._restated(commit, node, position):
            kept = () if field in node.always_writes else (position.current[field],)
            found.append(self._put(WrittenValue(commit, field, (node.name,), *reads, kept), position))
        return found

    def _restated(self, commit: Commit, node: Node, position: _Position) -> list[str]:
        """The fields that a node has left as they were, or has written with the value that they had.

        They are in no patch. A module has written them; what a function did is unknown, so that the value follows from
        the earlier one and from what the function has read, as what it decided not to write does.
        """
        if node.name in self._graph.rejecting or node.writes is None:
            return []
        reducer = self._graph.topology.schema.reducer
        fields = [field for field in node.writes.values() if field not in commit.patch and reducer(field) is None]
        return [field for field in fields if field in node.always_writes or field in position.current]

    def _built_on(self, field: str, commit: Commit, before: Mapping[str, WrittenValue]) -> tuple[WrittenValue, ...]:
        """The value into which an update was folded."""
        earlier = before.get(field)
        if earlier is None or field not in commit.patch:
            return ()
        update = commit.patch[field]
        if self._graph.topology.schema.reducer(field) is not None:
            return () if resets(update) else (earlier,)
        return (earlier,) if isinstance(update, Mapping) else ()

    def _route(
        self,
        commit: Commit,
        router: Router,
        sources: Mapping[str, tuple[str, ...]],
        position: _Position,
        sent: set[str],
        decisions: Sequence[WrittenValue],
    ) -> WrittenValue:
        """The decision of a router; what it wrote is put beside it."""
        fields = sources if router.reads is None else [field for field in router.reads.values() if field in sources]
        reads = self._reads({field: sources[field] for field in fields}, position, sent)
        reads.follows.extend(decisions)
        authors = () if router.module_name is None else (router.module_name,)
        written: dict[str, WrittenValue] = {}
        for own, field in router.writes.items():
            if field not in commit.patch and self._graph.topology.schema.reducer(field) is not None:
                continue
            earlier = self._built_on(field, commit, position.current)
            written[own] = self._put(WrittenValue(commit, field, authors, *reads, earlier), position)
        label = written.get(router.label) if isinstance(router, ModuleRouter) else None
        beside = written.values() if label is None else (label,)
        return self._decide(WrittenValue(commit, NO_FIELD, authors, *reads), beside)

    def _sent_to(self, entry: LogEntry) -> set[str]:
        """The names of the values that a `Send` brought."""
        return set(sent_to(self._entries, entry.parents, entry.commit.branch)) if entry.parents else set()

    def _of_checked(self, entry: LogEntry) -> set[str]:
        """Inputs of a check or a fix of the node that is checked: its own value, or what that node has read."""
        graph, name = self._graph, entry.commit.node
        if name in graph.checks:
            return self._sent_to(entry)
        check = graph.checked.get(name)
        if check is None or check.fix != name:
            return set()
        of = check.visit_at(self._entries, entry.parents[0]).of
        return {check.into, *check.outputs.values(), *(self._sent_to(self._entries[of]) if of >= 0 else ())}

    def _reads(
        self,
        sources: Mapping[str, tuple[str, ...]],
        position: _Position,
        sent: set[str],
        reader: str | None = None,
        of_checked: AbstractSet[str] = frozenset(),
    ) -> _Reads:
        """The values that a node, or a router, has read, given the commits behind them."""
        found, live = _Reads([], []), self._graph.topology.schema.live_fields
        for field, commits in sources.items():
            if field in of_checked:
                for commit in commits:
                    value = self.written.get((commit, field))
                    found.follows.extend(self._decided.get(commit, ()) if value is None else (value,))
            elif field in sent:  # what decided to send it has also made it
                found.follows.extend(decision for commit in commits for decision in self._decided.get(commit, ()))
            else:
                parts = commits if (reader, field) in self._viewed or field in live else None
                kept_by = [one for decided in position.kept_by.get(field, {}).values() for one in decided]
                found.fields.append(FieldRead(field, position.current.get(field), parts, tuple(kept_by)))
        return found

    # --- joins

    def _join(self, entry: LogEntry) -> _Position:
        """The values after a join: of each field, that of the branch that changed it, or a joined one."""
        commit, entries = entry.commit, self._entries
        index = len(self._positions)
        base = merge_base(entries, entry.parents)[0]
        branches, before = [self._positions[parent].current for parent in entry.parents], self._positions[base].current
        current: dict[str, WrittenValue] = {}
        position = _Position(current, *self._arriving(entry))
        for field in dict.fromkeys([field for branch in branches for field in branch]):
            values = list(dict.fromkeys([branch[field] for branch in branches if field in branch]))
            changed = [value for value in values if value is not before.get(field)] or values
            winner = entry.winners.get((field,))
            won = None if winner is None or winner == index else self.written.get((entries[winner].commit.id, field))
            if won is not None or (len(changed) == 1 and winner is None):
                current[field] = won or changed[0]
                continue
            authors: tuple[str, ...] = (commit.node,)
            if self._graph.topology.schema.reducer(field) is not None or isinstance(entry.state.raw(field), FrozenDict):
                authors = _mark_parts(changed, before.get(field))
            self._put(WrittenValue(commit, field, authors, (), (), tuple(changed)), position)
        return position

    def _mark_unjoined(self) -> None:
        """Marks what a branch holds of a field into which its siblings may be folded, in a run that is not over."""
        graph, joined = self._graph, set[int]()
        stack = [parent for entry in self._entries if len(entry.parents) > 1 for parent in entry.parents]
        while stack:
            at = stack.pop()
            if at not in joined:
                joined.add(at)
                stack.extend(self._entries[at].parents)
        writers = Counter(
            field
            for name, node in graph.nodes.items()
            for field in {
                *(node.writes or {}).values(),
                *(f for way in _routers(graph, name) for f in way.writes.values()),
            }
        )
        unjoined = {
            entry.commit.id: self._sent_apart(entry)
            for at, entry in enumerate(self._entries)
            if at not in joined and entry.commit.branch
        }
        for value in self.values:
            sent = unjoined.get(value.commit.id)
            if sent is not None and value.field != NO_FIELD and (sent or writers[value.field] != 1):
                folded = graph.topology.schema.reducer(value.field) is not None
                if folded or isinstance(value.commit.patch.get(value.field), Mapping):
                    value.unjudged = True

    def _sent_apart(self, entry: LogEntry) -> bool:
        """Return whether a `Send` began the branch of a commit, beside others to the same node."""
        while entry.commit.branch and len(entry.parents) == 1:
            before = self._entries[entry.parents[0]]
            if len(before.sends) > 1:
                return True
            entry = before
        return False


def _mark_parts(changed: Iterable[WrittenValue], base: WrittenValue | None) -> tuple[str, ...]:
    """Marks the values that branches had folded since they parted, and returns their authors."""
    stack, authors = list(changed), dict[str, None]()
    seen: set[WrittenValue] = set()
    while stack:
        value = stack.pop()
        if value is not base and value not in seen:
            seen.add(value)
            value.unjudged = True
            authors.update(dict.fromkeys(value.authors))
            stack.extend(value.builds_on)
    return tuple(authors)


def _rejections(
    entries: Sequence[LogEntry], rejecting: Mapping[str, FinderNode]
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """The problems that checks have found, by the commit whose output they refused.

    And the commits that have handed that on to the check: in an agent, one takes the outputs out of the turn.
    """
    found: dict[str, tuple[str, ...]] = {}
    handing_on: set[str] = set()
    for entry in entries:
        check, failure = rejecting.get(entry.commit.node), entry.commit.failure
        if check is None or not entry.parents:
            continue
        if failure is not None and failure.type == CheckError.__name__:
            problems: tuple[str, ...] = (failure.message,)
        elif check.rejects(entry.commit.route):
            problems = tuple(thaw(entry.state.raw(check.into)))
        else:
            continue
        refused = check.output_before(entries, entry.parents[0])
        found |= dict.fromkeys(refused, problems)
        before = entries[entry.parents[0]]
        while refused and before.commit.id not in refused:
            handing_on.add(before.commit.id)
            before = entries[before.parents[0]]
    return found, handing_on


# --- facts of the graph


def _along_error_edge(graph: GraphSpec, commit: Commit) -> bool:
    """Return whether a commit with a failure went along an error edge; a tool that reports one to its model goes on."""
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


@lru_cache(maxsize=1024)
def written_between(graph: GraphSpec, source: str, node: str) -> frozenset[str]:
    """The fields that may be written on the ways from a node to another one, as far as nodes declare them."""
    fields: set[str] = set()
    stack, seen = [*graph.topology.targets(source)], {node, END}
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        stack += graph.topology.targets(name)
        fields.update((graph.nodes[name].writes or {}).values())
        fields.update(field for router in _routers(graph, name) for field in router.writes.values())
        fields.update(edge.into for edge in graph.error_edges.get(name, ()) if edge.into is not None)
    return frozenset(fields)


def _leads_past(graph: GraphSpec, name: str, avoids: set[str]) -> bool:
    """Return whether one of the ways on from a node leads only to nodes in `avoids`."""
    exits = graph.exits.get(name, ())
    edges = [exit_ for exit_ in exits if isinstance(exit_, str)]
    node = graph.nodes.get(name)
    if node is not None and not avoids.isdisjoint(node.goto):
        return True
    if not avoids.isdisjoint([edge.target for edge in graph.error_edges.get(name, ())]):
        return True
    routers = [exit_ for exit_ in exits if isinstance(exit_, Router)]
    return bool(exits) and avoids.issuperset(edges) and not any(avoids.isdisjoint(way.goto) for way in routers)


# Field metrics as functions: what they may take and return, how they are called, and what they say of a value.


logger = logging.getLogger("dspyer")

LONGEST = 2000
"""The most characters of a value in feedback."""

ROUNDING = 1e-6
"""How far a score may be beyond 0 or 1, or below 1: weights that add up to 1 on paper add up to 0.9999999999999999."""


class FieldResult(NamedTuple):
    """The verdict of a field metric on one value.

    Attributes:
        score: from 0 to 1; None if the metric cannot tell.
        feedback: its own words; None if it gave none.
    """

    score: float | None
    feedback: str | None = None

    @property
    def verdict(self) -> str:
        """`"right"` for a score of 1, `"wrong"` for a lower one, `"unknown"` for none."""
        return "unknown" if self.score is None else "right" if self.score >= 1 else "wrong"


class Equals:
    """Return whether a field equals a column of the example: what `equals` makes."""

    def __init__(self, column: str) -> None:
        if not isinstance(column, str):
            raise TypeError(f"equals takes the name of a column of the examples, not {brief(column)}")
        self.column = column
        self._warned = False

    def __call__(self, example: Any, value: Any) -> bool:
        expected = self.expected(example)
        equal = bool(value == expected)
        if not equal and not self._warned and _differ_in_type_alone(value, expected):
            self._warned = True
            logger.warning(
                "equals(%r): the value %s and the expected %s differ in their types alone, and are not equal: give "
                "examples with values of the type of the field, or a function that compares them",
                self.column,
                repr(value)[:200],
                repr(expected)[:200],
            )
        return equal

    def expected(self, example: Any) -> Any:
        """The value of the column."""
        if self.column not in example:
            raise ValueError(self.lacks(example))
        return example[self.column]

    def lacks(self, example: Any) -> str:
        """The problem with an example without the column."""
        return (
            f"equals({self.column!r}): the example has no {self.column!r}; it has {list_names(example.keys())}."
            f"{suggestion(self.column, example.keys())} For examples without it, give a function that returns None"
        )

    def __repr__(self) -> str:
        return f"equals({self.column!r})"


def _differ_in_type_alone(value: Any, expected: Any) -> bool:
    """Tell if two values that are not equal are the same as JSON, or as texts: a model and a dict, 17 and "17"."""
    if type(value) is type(expected) and isinstance(value, str | int | float | bool | None):
        return False
    try:
        return bool(to_jsonable_python(value) == to_jsonable_python(expected)) or (
            isinstance(value, str) is not isinstance(expected, str) and str(value) == str(expected)
        )
    except Exception:  # noqa: BLE001 - a value without a JSON form
        return False


class FieldJudge:
    """Calls the metrics of fields, and words what they found."""

    def __init__(self, metrics: Mapping[str, Callable[..., Any]]) -> None:
        self.metrics = dict(metrics)
        self._takes_state = {field for field, metric in metrics.items() if _takes_state(metric)}

    def takes_state(self, field: str) -> bool:
        """Return whether the metric of a field wants the state after it was written."""
        return field in self._takes_state

    def judge(self, field: str, example: Any, value: Any, state: Any) -> FieldResult:
        """The verdict of the metric of a field on one value."""
        metric = self.metrics[field]
        arguments = {"example": example, field: value}
        if field in self._takes_state:
            arguments.setdefault("state", state)  # a field of this name is itself
        with noting(f"in the metric of the field {field!r}"):
            found = metric(example, value) if isinstance(metric, Equals) else metric(**arguments)
        return _result(found, field)

    def text(self, field: str, example: Any, value: Any, result: FieldResult) -> str:
        """The feedback on a value: the metric's own, else what it is and what was expected."""
        if result.feedback is not None:
            return result.feedback
        if result.verdict == "right":
            return f"`{field}` is right."
        metric = self.metrics[field]
        if isinstance(metric, Equals):
            return f"`{field}` is {shown(value)}, expected {shown(metric.expected(example))}."
        degree = f" (score {result.score:g} of 1)" if result.score else ""
        return f"`{field}` is {shown(value)}, which is wrong{degree}."


def shown(value: object) -> str:
    """A value as feedback shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def metric_name(metric: Any) -> str:
    return repr(metric) if isinstance(metric, Equals) else getattr(metric, "__name__", type(metric).__name__)


# --- what is wrong with a field metric


def metric_problems(field: str, metric: Any) -> list[str]:
    who = f"the metric of {field!r}"
    if isinstance(metric, Equals):
        return []
    if not callable(metric) or isinstance(metric, type | dspy.Module):
        kind = with_article(type(metric).__name__)
        return [f"{who} is {brief(metric)}, {kind}: give a function of `example` and `{field}`, or equals('column')"]
    if field == "example":
        return [f"{who} cannot take both the example and a field of this name: compare it with equals('column')"]
    if is_async(metric):
        return [f"{who} is async: give a plain function"]
    signature = read_signature(metric, who)
    names = {parameter.name for parameter in signature.parameters if not parameter.default}
    unknown = [name for name in names if name not in ("example", field, "state")]
    problems = list(signature.problems)
    if unknown:
        hint = "" if len(unknown) > 1 else suggestion(unknown[0], ["example", field, "state"])
        problems.append(
            f"{who} takes {list_names(sorted(unknown))}: it may take `example`, `{field}` and `state`.{hint}"
        )
    given = {parameter.name for parameter in signature.parameters}
    missing = [name for name in ("example", field) if name not in given and not signature.takes_all]
    if missing and not unknown:
        problems.append(f"{who} takes no {list_names(missing)}: make it a function of `example` and `{field}`")
    return problems


def _takes_state(metric: Any) -> bool:
    if isinstance(metric, Equals):
        return False
    return any(parameter.name == "state" for parameter in read_signature(metric, "").parameters)


def _result(found: Any, field: str) -> FieldResult:
    """The result of a field metric, validated."""
    feedback = None
    given = found
    if isinstance(found, dspy.Prediction):
        feedback, given = found.get("feedback"), found.get("score")
        if feedback is not None and not isinstance(feedback, str):
            raise ValueError(f"the metric of {field!r} gave the feedback {brief(feedback)}: give a text")
    feedback = feedback if feedback and feedback.strip() else None
    if given is None:
        return FieldResult(None, feedback)
    score = _number(given)
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ValueError(
            f"the metric of {field!r} returned {brief(given)}: give a bool, a number from 0 to 1, None if it cannot "
            "tell, or dspy.Prediction(score=..., feedback=...)"
        )
    return FieldResult(1.0 if score > 1 - ROUNDING else max(0.0, score), feedback)


def _number(given: Any) -> float:
    if not isinstance(given, SupportsFloat) or isinstance(given, str):
        return math.nan
    try:
        return float(given)
    except (TypeError, ValueError):  # an array of several numbers, or of none
        return math.nan
