"""`Stats`: how reliable the nodes of a run were, and what they cost, counted from its commits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from dspyer.display.amounts import cost_text
from dspyer.display.tables import table_html, table_lines
from dspyer.display.tokens import total_of
from dspyer.events import Commit, LMCall
from dspyer.failure import Failure
from dspyer.ids import Address, execution_id
from dspyer.patch import Replace
from dspyer.record.drawn import Checked, Mapped
from dspyer.redaction import HIDDEN
from dspyer.reducers import Updates
from dspyer.scheduler.topology import START

TIMEOUT = "NodeTimeoutError"


class ItemCounts(NamedTuple):
    """The items of one visit of a map: how many there are, and which have completed or failed in this process."""

    items: int = 0
    completed: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()


@dataclass(slots=True)
class NodeStats:
    """The figures of one node.

    Attributes:
        node: its name.
        visits: how often it ran.
        items: of a map, how many items ended; None for any other node. The figures from `first_try` to `failed` count
            items then, and visits of any other node.
        first_try: succeeded in the first attempt, and no check refused the output.
        retried: succeeded in a later attempt.
        corrected: succeeded after a check had refused an output.
        accepted: a check accepted the last output with its problems (`accept=True`).
        failed: failed after the last attempt.
        failed_visits: of a map, how many visits failed as a whole.
        attempts: attempts of all visits or items.
        problems: how often a check found each problem; those that ended with a `CheckError` are in that alone.
        exceptions: how often each class was raised, in all attempts. For a visit of a map that failed as a whole these
            are `MapError` and what was retried; the last error of each item is in `MapError.failures`.
        timeouts: attempts that took longer than their `timeout`.
        cached: visits whose patch came from the node's cache.
        durations: seconds of each visit that was committed, with its attempts and pauses.
        rejected_seconds: the part of them spent on outputs that a check refused, corrections included.
        lm_calls: LM calls, failed ones too; None if unknown.
        lm_cached: those whose response came from DSPy's cache.
        fallbacks: those whose response came from a backup of `dspyer.lms.reliable`.
        tokens: tokens of its LM calls; None if unknown.
        rejected_tokens: the part of them spent on outputs that a check refused.
        cost: US dollars; None if unknown.
        rejected_cost: the part of it spent on outputs that a check refused.
    """

    node: str
    visits: int = 0
    items: int | None = None
    first_try: int = 0
    retried: int = 0
    corrected: int = 0
    accepted: int = 0
    failed: int = 0
    failed_visits: int = 0
    attempts: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    timeouts: int = 0
    cached: int = 0
    durations: list[float] = field(default_factory=list)
    rejected_seconds: float = 0.0
    lm_calls: int | None = None
    lm_cached: int | None = None
    fallbacks: int | None = None
    tokens: int | None = None
    rejected_tokens: int | None = None
    cost: float | None = None
    rejected_cost: float | None = None

    @property
    def total(self) -> int:
        """How many items ended, or visits if it is no map."""
        return self.visits if self.items is None else self.items

    @property
    def seconds(self) -> float:
        """Seconds of all visits that were committed."""
        return math.fsum(self.durations)

    def percentile(self, share: float) -> float | None:
        """The seconds that this share of the visits took at most, by the nearest rank; None without a visit."""
        if not self.durations:
            return None
        return sorted(self.durations)[max(0, math.ceil(share * len(self.durations)) - 1)]

    @property
    def mean_attempts(self) -> float | None:
        """Attempts per visit or item; None if nothing was called."""
        return self.attempts / self.total if self.total else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "durations"}
        outcomes = ("first_try", "retried", "corrected", "accepted", "failed")
        return {
            **found,
            **{f"{name}_percent": _percent(found[name], self.total) for name in outcomes},
            "mean_attempts": self.mean_attempts,
            "problems": dict(self.problems),
            "exceptions": dict(self.exceptions),
            "seconds": self.seconds,
            "p50": self.percentile(0.5),
            "p95": self.percentile(0.95),
        }


class Stats:
    """How reliable the nodes of a run were, and what they cost. As text it is a table, in a notebook too.

    Attributes:
        nodes: the figures of each node that ran, in the order of the graph.
        usage: tokens by language model, of the whole run.
        unknown: what the figures do not cover, one sentence each.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("half", lambda n: {"h": 1 / n}, writes=["h"]).add_path(START, "half", END)
        >>> stats = graph.compile().run({"n": 0}).stats()
        >>> stats.nodes["half"].failed, dict(stats.nodes["half"].exceptions)
        (1, {'ZeroDivisionError': 1})
    """

    def __init__(
        self, nodes: Iterable[NodeStats], usage: Mapping[str, Mapping[str, Any]], unknown: Iterable[str] = ()
    ) -> None:
        self.nodes: dict[str, NodeStats] = {one.node: one for one in nodes}
        self.usage = {name: dict(tokens) for name, tokens in usage.items()}
        self.unknown = tuple(unknown)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a list of nodes, the usage, and what is unknown.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).stats().to_dict()["nodes"][0]["first_try_percent"]
            100.0
        """
        nodes = [one.to_dict() for one in self.nodes.values()]
        return {"nodes": nodes, "usage": self.usage, "unknown": list(self.unknown)}

    def __str__(self) -> str:
        columns = self._columns()
        return "\n".join([*table_lines([[column.title for column in columns], *self._rows(columns)]), *self._remarks()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = self._columns()
        alarms = {
            (row, place)
            for row, one in enumerate(self.nodes.values())
            for place, column in enumerate(columns)
            if column.alarms and column.counts(one)
        }
        return table_html([column.title for column in columns], self._rows(columns), self._remarks(), alarms)

    def _rows(self, columns: Iterable[_Column]) -> list[list[str]]:
        return [[column.cell(one) for column in columns] for one in self.nodes.values()]

    def _columns(self) -> list[_Column]:
        rows = self.nodes.values()
        return [column for column in _COLUMNS if column.always or any(column.counts(one) for one in rows)]

    def _remarks(self) -> list[str]:
        lines = []
        for one in self.nodes.values():
            counted = [("problem", one.problems), ("exception", one.exceptions)]
            parts = [
                f"{count} x {text if what == 'exception' else repr(text)}"
                for what, found in counted
                for text, count in found.most_common(5)
            ]
            if parts:
                lines.append(f"{one.node}: {', '.join(parts)}")
        seconds = math.fsum(one.rejected_seconds for one in self.nodes.values())
        if seconds:
            tokens = sum(one.rejected_tokens or 0 for one in self.nodes.values())
            cost = math.fsum(one.rejected_cost or 0.0 for one in self.nodes.values())
            spent = [f"{_seconds(seconds)} s"]
            spent += [f"{tokens:,} tokens"] if tokens else []
            spent += [f"{cost_text(cost)} USD"] if cost else []
            lines.append(f"spent on outputs that a check refused: {', '.join(spent)}")
        if not any(one.tokens for one in self.nodes.values()):
            totals = {name: total_of(tokens) for name, tokens in self.usage.items()}
            lines += [f"{total:,} tokens of {name}" for name, total in totals.items() if total]
        return [*lines, *self.unknown]


# --- the columns of the table


class _Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: its head.
        cell: the text of a node's cell.
        counts: whether a node has something to show here; without such a node the column is left out.
        always: whether it is never left out.
        alarms: whether a cell that counts is red: what a team looks at first.
    """

    title: str
    cell: Callable[[NodeStats], str]
    counts: Callable[[NodeStats], object] = bool
    always: bool = False
    alarms: bool = False


def _share(name: str) -> Callable[[NodeStats], str]:
    return lambda one: _percent_text(getattr(one, name), one.total)


_COLUMNS = (
    _Column("node", lambda one: one.node, always=True),
    _Column("visits", lambda one: f"{one.visits:,}", always=True),
    _Column("items", lambda one: "" if one.items is None else f"{one.items:,}", lambda one: one.items is not None),
    _Column("first try", _share("first_try"), always=True),
    _Column("retried", _share("retried"), lambda one: one.retried),
    _Column("corrected", _share("corrected"), lambda one: one.corrected),
    _Column("accepted", _share("accepted"), lambda one: one.accepted, alarms=True),
    _Column("failed", _share("failed"), lambda one: one.failed, always=True, alarms=True),
    _Column("failed visits", lambda one: str(one.failed_visits or ""), lambda one: one.failed_visits, alarms=True),
    _Column("attempts", lambda one: _number(one.mean_attempts, 2), always=True),
    _Column("timeouts", lambda one: str(one.timeouts or ""), lambda one: one.timeouts, alarms=True),
    _Column("cached", lambda one: str(one.cached or ""), lambda one: one.cached),
    _Column("p50 s", lambda one: _seconds(one.percentile(0.5)), always=True),
    _Column("p95 s", lambda one: _seconds(one.percentile(0.95)), always=True),
    _Column("seconds", lambda one: _seconds(one.seconds), always=True),
    _Column("LM calls", lambda one: f"{one.lm_calls:,}" if one.lm_calls else "", lambda one: one.lm_calls),
    _Column("LM cached", lambda one: str(one.lm_cached or ""), lambda one: one.lm_cached),
    _Column("fallbacks", lambda one: str(one.fallbacks or ""), lambda one: one.fallbacks, alarms=True),
    _Column("tokens", lambda one: f"{one.tokens:,}" if one.tokens else "", lambda one: one.tokens),
    _Column("USD", lambda one: cost_text(one.cost) if one.cost else "", lambda one: one.cost),
)


def _percent(count: int, total: int) -> float | None:
    return round(100 * count / total, 2) if total else None


def _percent_text(count: int, total: int) -> str:
    """Counts that are not 0 or all never show as 0 % or 100 %."""
    if not count or not total:
        return ""
    share = 100 * count / total
    return "100 %" if count == total else f"{min(max(share, 0.1), 99.9):.1f} %"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.1f}"


# --- counting


def count_stats(
    nodes: Sequence[str],
    commits: Iterable[Commit],
    failures: Iterable[FinalFailure],
    *,
    checks: Mapping[str, Checked],
    maps: Mapping[str, Mapped],
    items: Mapping[str, ItemCounts],
    lm_calls: Iterable[LMCall] | None,
    usage: Mapping[str, Mapping[str, Any]],
    unknown: Iterable[str] = (),
    shown: Iterable[Commit] | None = None,
    begin: Mapping[str, Any] | None = None,
) -> Stats:
    """The figures of a run.

    Args:
        nodes: the names of the nodes, in the order of the table.
        commits: the commits, each after its parents.
        failures: those that ended the run.
        checks: the checks by name.
        maps: the maps by name.
        items: the items of each execution of a map, where they are known.
        lm_calls: what each LM call has used; None if that is unknown.
        usage: tokens by language model.
        unknown: what the figures do not cover.
        shown: the same commits with the redaction of the graph, for the texts of problems; None for no redaction.
        begin: the values with which the first commit began.
    """
    counter = VisitCounter(nodes, checks, maps, items, known_calls=lm_calls is not None)
    counter.begin(begin or {}, redacted=shown is not None)
    commits = list(commits)
    for commit, redacted in zip(commits, commits if shown is None else shown, strict=True):
        counter.commit(commit, redacted)
    for failure in failures:
        counter.failure(failure)
    unfinished = counter.use(lm_calls or ())
    more = [f"{unfinished:,} tokens were used by visits that have not finished"] if unfinished else []
    return Stats(counter.ended(), usage, [*unknown, *more])


class FinalFailure(NamedTuple):
    """A failure that ended a run, with the attempts before it, and the id of the last commit of its branch."""

    failure: Failure
    earlier: Sequence[Failure]
    parent: str


def parent_of(failure: Failure, commits: Sequence[Commit]) -> str:
    """The id of the last commit of the branch that failed; "" if it had none on this path."""
    failed = Address.parse(failure.execution)
    if failed.index < 1 or not failed.is_commit:
        return ""
    before = execution_id(failed.path, failed.index - 1)
    return next((one.id for one in reversed(commits) if Address.parse(one.id).own == before), "")


class Submitted(NamedTuple):
    """What an agent has done since its run began.

    Attributes:
        turn: the execution of its last turn.
        refused: the executions of the turns whose outputs its check has refused, if it has accepted none since.
    """

    turn: str = ""
    refused: tuple[str, ...] = ()


class Visit:
    """One visit of a node: how it ended, as far as the commits up to now show it."""

    __slots__ = ("duration", "node", "outcome", "refused")

    def __init__(self, node: str, outcome: str, duration: float = 0.0) -> None:
        self.node = node
        self.outcome = outcome
        self.duration = duration
        self.refused = False


class VisitCounter:
    """Counts visits. How a visit of a checked node ended is known after the last check of its corrections."""

    def __init__(
        self,
        nodes: Sequence[str],
        checks: Mapping[str, Checked],
        maps: Mapping[str, Mapped],
        items: Mapping[str, ItemCounts],
        *,
        known_calls: bool,
    ) -> None:
        zero = 0 if known_calls else None
        self._stats = {
            name: NodeStats(name, lm_calls=zero, lm_cached=zero, fallbacks=zero, tokens=zero) for name in nodes
        }
        self._checks, self._maps, self._items = checks, maps, items
        self._fixes = {check.fix for check in checks.values()}
        self._modes = frozenset(mode for check in checks.values() for mode in check.modes)
        self._submitted: dict[str, Submitted] = {}  # by commit, of an agent with a check
        self._visits: dict[str, Visit] = {}  # by execution
        self._origins: dict[str, str] = {}  # of checks and fixes: the execution of the node that is checked
        self._begin: dict[str, _Held] = {}  # what the counted fields held before the first commit
        self._held: dict[str, dict[str, _Held]] = {}  # by commit, what the fields held after it

    def begin(self, state: Mapping[str, Any], *, redacted: bool) -> None:
        """Notes the values with which the first commit began."""
        fields = {check.into for check in self._checks.values()}
        fields |= {field for one in self._maps.values() for field in (one.into, one.failures) if field}
        for name in fields:
            found = state.get(name)
            self._begin[name] = _Held.of(found, HIDDEN if redacted else found)

    def commit(self, commit: Commit, shown: Commit) -> None:
        """Counts a commit; `shown` is the same one, redacted."""
        if self._begin:
            self._follow(commit, shown)
        if self._modes:
            self._follow_agent(commit)
        stats = self._stats.get(commit.node)
        if stats is None:
            return  # inputs, or a join
        stats.visits += 1
        stats.durations.append(commit.duration)
        stats.cached += commit.cached
        failed = [*commit.failed_attempts, *([] if commit.failure is None else [commit.failure])]
        _count_raised(stats, failed)
        parent = commit.parents[0] if commit.parents else ""
        if commit.node in self._maps:
            self._visits[commit.id] = Visit(commit.node, "", commit.duration)
            if commit.failure is None:
                self._count_items(stats, commit)
            else:
                self._count_failed_map(stats, commit.id, commit.failed_attempts)
            return
        stats.attempts += max(commit.attempt, len(failed))
        outcome = "failed" if commit.failure is not None else "retried" if commit.attempt > 1 else "first_try"
        self._visits[commit.id] = Visit(commit.node, outcome, commit.duration)
        if commit.node in self._checks and self._checks[commit.node].modes:
            self._check_agent(commit)
        elif commit.node in self._checks:
            self._check(commit, parent)
        elif commit.node in self._fixes:
            self._origins[commit.id] = self._origins.get(parent, "")
            if commit.failure is not None:
                self._end(parent, "failed")

    def _follow(self, commit: Commit, shown: Commit) -> None:
        """Notes what the counted fields hold after a commit: its patch has only those whose values have changed."""
        held = self._held.get(commit.parents[0], self._begin) if commit.parents else self._begin
        patch, redacted = commit.patch, shown.patch
        changed = {field: _Held.of(patch[field], redacted.get(field)) for field in self._begin if field in patch}
        self._held[commit.id] = {**held, **changed} if changed else held

    def _follow_agent(self, commit: Commit) -> None:
        """Notes which turn was the last one after a commit; a run begins without one."""
        before = self._submitted.get(commit.parents[0], Submitted()) if commit.parents else Submitted()
        if commit.node == START:
            before = Submitted()
        self._submitted[commit.id] = before._replace(turn=commit.id) if commit.node in self._modes else before

    def _written(self, commit: Commit, field: str | None, folded: Collection[str] = ()) -> _Held:
        """What a node has written to one of the counted fields, whether it changed the value or not."""
        if field is None or (field in folded and field not in commit.patch):
            return _Held()
        return self._held[commit.id][field]

    def _problems(self, commit: Commit, check: Checked) -> Sequence[str]:
        """The problems that a check has written, counted; one that failed has written none."""
        found = self._written(commit, check.into).texts if commit.failure is None else ()
        self._stats[commit.node].problems.update(found)
        return found

    def failure(self, final: FinalFailure) -> None:
        """Counts a failure that ended the run."""
        failure = final.failure
        stats = self._stats.get(failure.node)
        if stats is None:
            return
        stats.visits += 1
        _count_raised(stats, [*final.earlier, failure])
        mapped = failure.node in self._maps
        stats.attempts += 0 if mapped else failure.attempt
        self._visits[failure.execution] = Visit(failure.node, "" if mapped else "failed")
        if mapped:
            self._count_failed_map(stats, failure.execution, final.earlier)
        if failure.node in self._checks and self._checks[failure.node].modes:
            self._end_turns(self._refuse_turn(self._submitted.get(final.parent, Submitted())), "failed")
        elif failure.node in self._checks:
            self._refuse(final.parent, "failed")
        elif failure.node in self._fixes:
            self._end(final.parent, "failed")

    def _check(self, commit: Commit, parent: str) -> None:
        """Follows a check: whether it has refused what its parent gave, and what it has found."""
        check = self._checks[commit.node]
        origin = self._origins.get(parent, parent)
        self._origins[commit.id] = origin
        problems = self._problems(commit, check)
        if commit.failure is not None:
            self._refuse(parent, "failed")
        elif check.fix is not None and commit.route == (check.fix,):
            self._refuse(parent, "refused")
        elif origin in self._visits:
            visit = self._visits[origin]
            visit.outcome = "accepted" if problems else "corrected" if visit.refused else visit.outcome

    def _check_agent(self, commit: Commit) -> None:
        """Follows the check of an agent: whether it has refused what the last turn gave, and what it has found."""
        check, submitted = self._checks[commit.node], self._submitted[commit.id]
        problems = self._problems(commit, check)
        if commit.failure is None and commit.route and commit.route[0] in check.modes:
            submitted = self._refuse_turn(submitted)
            self._end_turns(submitted, "refused")
            self._submitted[commit.id] = submitted
            return
        if commit.failure is not None:
            self._end_turns(self._refuse_turn(submitted), "failed")
        elif problems:
            self._end_turns(submitted._replace(refused=(*submitted.refused, submitted.turn)), "accepted")
        else:
            self._end_turns(submitted, "corrected")
        self._submitted[commit.id] = Submitted(submitted.turn)

    def _refuse_turn(self, submitted: Submitted) -> Submitted:
        """Notes that a check has refused the outputs of the last turn."""
        self._mark_refused(submitted.turn)
        return submitted._replace(refused=(*submitted.refused, submitted.turn))

    def _end_turns(self, submitted: Submitted, outcome: str) -> None:
        """Notes how the visits end whose outputs were refused: all as the correction of the last one."""
        for execution in submitted.refused:
            if execution in self._visits:
                self._visits[execution].outcome = outcome

    def _refuse(self, execution: str, outcome: str) -> None:
        """Notes that a check has refused the output of an execution, and how the visit of the checked node ends."""
        self._mark_refused(execution)
        self._end(execution, outcome)

    def _mark_refused(self, execution: str) -> None:
        visit = self._visits.get(execution)
        if visit is not None:
            visit.refused = True
            self._stats[visit.node].rejected_seconds += visit.duration

    def _end(self, execution: str, outcome: str) -> None:
        """Notes how the visit ends that an execution, a check or a correction, belongs to."""
        origin = self._visits.get(self._origins.get(execution, execution))
        if origin is not None:
            origin.outcome = outcome

    def _count_items(self, stats: NodeStats, commit: Commit) -> None:
        into, failures, folded = self._maps[commit.node]
        failed: Sequence[Failure] = self._written(commit, failures, folded).entries
        known = self._items.get(commit.id)
        count = len(self._written(commit, into, folded).entries) + len(failed) if known is None else known.items
        lost = {failure.index for failure in failed}
        again = {failure.index for failure in commit.failed_attempts if failure.index is not None} - lost
        stats.items = (stats.items or 0) + count
        stats.failed += len(lost)
        stats.retried += len(again)
        stats.first_try += count - len(lost) - len(again)
        stats.attempts += count + sum(failure.index is not None for failure in commit.failed_attempts)
        _count_raised(stats, failed)

    def _count_failed_map(self, stats: NodeStats, execution: str, earlier: Iterable[Failure]) -> None:
        """Counts the items of a visit that failed as a whole, which no commit names."""
        stats.failed_visits += 1
        known = self._items.get(execution, ItemCounts())
        again = [failure.index for failure in earlier if failure.index is not None]
        retried = len(known.completed.intersection(again))
        stats.items = (stats.items or 0) + len(known.completed) + len(known.failed)
        stats.failed += len(known.failed)
        stats.retried += retried
        stats.first_try += len(known.completed) - retried
        stats.attempts += len(known.completed) + len(known.failed) + len(again)

    def use(self, calls: Iterable[LMCall]) -> int:
        """Counts what LM calls have used; returns the tokens of visits that are not known to have ended."""
        unfinished = 0
        for call in calls:
            visit = self._visits.get(call.execution)
            if visit is None:
                unfinished += call.tokens
                continue
            stats, cost = self._stats[visit.node], call.cost
            stats.lm_calls = (stats.lm_calls or 0) + 1
            stats.lm_cached = (stats.lm_cached or 0) + call.cached
            stats.fallbacks = (stats.fallbacks or 0) + call.fallback
            stats.tokens = (stats.tokens or 0) + call.tokens
            stats.cost = stats.cost if cost is None else (stats.cost or 0.0) + cost
            if visit.refused:
                stats.rejected_tokens = (stats.rejected_tokens or 0) + call.tokens
                stats.rejected_cost = stats.rejected_cost if cost is None else (stats.rejected_cost or 0.0) + cost
        return unfinished

    def ended(self) -> list[NodeStats]:
        """The figures of the nodes that ran."""
        for visit in self._visits.values():
            if visit.outcome in ("first_try", "retried", "corrected", "accepted", "failed"):
                stats = self._stats[visit.node]
                setattr(stats, visit.outcome, getattr(stats, visit.outcome) + 1)
        return [stats for stats in self._stats.values() if stats.visits]


def _count_raised(stats: NodeStats, failures: Iterable[Failure]) -> None:
    for failure in failures:
        stats.exceptions[failure.type] += 1
        stats.timeouts += failure.type == TIMEOUT


class _Held(NamedTuple):
    """The entries of a field, and their texts as a report may show them."""

    entries: Sequence[Any] = ()
    texts: Sequence[str] = ()

    @classmethod
    def of(cls, update: Any, shown: Any) -> Self:
        """The entries of an update, of which `shown` is the redacted form: a list like it, or one text for all."""
        entries, texts = _entries(update) or [], _entries(shown)
        return cls(entries, [str(shown)] * len(entries) if texts is None else [str(text) for text in texts])


def _entries(update: Any) -> list[Any] | None:
    """The entries that an update of a list holds; None for no update."""
    if isinstance(update, Updates):
        return [entry for part in update.updates for entry in _entries(part) or ()]
    if isinstance(update, Replace):
        return list(update.frozen or ())  # a field may also be None
    return list(update) if isinstance(update, Sequence) and not isinstance(update, str) else None
